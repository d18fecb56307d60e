# SPDX-License-Identifier: Apache-2.0
"""weightfs push refuses, before it sends a file, what would make a wrong version or none; and what it keeps of a slow
push."""
import json
import random

import pytest

from harness.filesystems import weightfs as plain
from harness.tree import differences
from versions import MIB, URL, comparable, keys, make_tree, pull, refused, weightfs, write

TIME = 20_261_124_122_857


def push(server, path, *words, url=URL):
    return json.loads(weightfs(server, "push", path, url, "--json", *words).out)


@pytest.fixture
def small(local):
    return make_tree(local / "source", large=MIB)


def test_a_time_is_no_version_among_steps(server, small):
    """It would be greater than every step: pulls would take it, and --keep would remove the steps."""
    write(server, small, 1000)
    before = keys(server)
    error = refused(server, "push", small, URL)
    assert "the version of this push is a time, 20" in error
    assert "such as 1000: give it one of them with --version N" in error
    assert keys(server) == before
    assert push(server, small, "--version", TIME)["version"] == TIME
    write(server, small, TIME + 1)
    assert "is a time" in refused(server, "push", small, URL), "a time beside the steps makes it no better"
    assert push(server, small, "--version", 1001)["version"] == 1001


def test_times_among_times(server, small):
    write(server, small, TIME)
    assert push(server, small)["version"] > TIME
    assert push(server, small)["existed"]
    write(server, small, 1000, series="other")   # of no concern
    weightfs(server, "push", small, URL, "--version", 1000)


def test_a_publication_with_a_time_is_no_version_among_steps(server, small, factory, weightfs_only):
    tree = make_tree(factory.mount(factory.store("256M")).path / "step", large=MIB)
    published = json.loads(plain("publish", tree, "--json").out)["version"]
    write(server, small, 1000)
    error = refused(server, "push", tree, URL)
    assert f"the version of the publication is a time, {published}" in error and "weightfs publish --version N" in error
    push(server, tree, "--version", published)


@pytest.mark.parametrize("name", ["1000", "1000/", "9223372036854775807"])
def test_a_series_has_no_number_as_its_name(server, small, name):
    """Its objects would be below those of a version of the series above, and would be removed with it."""
    for words in (["push", small, f"{URL}/{name}"], ["push", small, f"{URL}/{name}", "--take-over", "--version", 5],
                  ["prune", f"{URL}/{name}", "--keep", 1], ["push", "--watch", small, f"{URL}/{name}"]):
        assert f"is version {name.rstrip('/')} of {URL}" in refused(server, *words)
    assert not server.requests


@pytest.mark.parametrize("url", ["s3://tests/2024", f"{URL}/01000", f"{URL}/1000x", f"{URL}/v1000"])
def test_names_that_are_no_versions(server, small, url):
    """A series has a name, so the first part is none; and a version has no leading zeros."""
    push(server, small, "--version", 5, url=url)
    weightfs(server, "prune", url, "--keep", 1)


def test_a_service_that_ignores_conditions(server, small, local):
    server.objects.ignores_conditions = True
    for tree in (small, make_tree(local / "other", large=MIB)):
        for _ in range(2):
            error = refused(server, "push", tree, URL, "--version", 5)
            assert "the service ignores If-None-Match" in error or "another push began this version" in error
    assert "ignores If-None-Match" in refused(server, "push", small, URL, "--version", 6)
    assert {key.rsplit("/", 1)[1] for key in keys(server)} == {"claim"}, "no file was sent"
    server.objects.ignores_conditions = False
    push(server, small, "--version", 5)


def test_a_service_without_conditions(server, small):
    server.fail(1, "status", method="PUT", key="/claim$", status=501, code="NotImplemented", every=True)
    error = refused(server, "push", small, URL, "--version", 5)
    assert "HTTP 501 NotImplemented" in error and "(If-None-Match): use a newer release of it, or another one" in error
    assert not keys(server)


def test_keys_that_are_too_long(server, small):
    """1,024 bytes are accepted, and one more is noticed before anything is sent."""
    folder = small
    for _ in range(3):
        folder /= "d" * 250
    folder.mkdir(parents=True)
    (folder / "file").write_bytes(b"1")
    path = (folder / "file").relative_to(small).as_posix()
    series = "s" * (1024 - len(f"/5/{path}"))
    assert f"{path}: its key in the bucket would have 1025 bytes" in refused(
        server, "push", small, f"s3://tests/{series}s", "--version", 5)
    assert not server.requests
    push(server, small, "--version", 5, url=f"s3://tests/{series}")
    assert max(map(len, keys(server))) == 1024


def has_arrived(record):
    return bool(record.arrivals) and record.arrivals[-1][1] == record.size


def test_a_limited_push_that_is_killed_again_and_again_makes_progress(server, start, local, target):
    """Its parts share the rate, so that few of them are in flight. It is killed soon after the first one."""
    tree = local / "source"
    tree.mkdir()
    (tree / "large").write_bytes(random.randbytes(16 * MIB) * 3)
    for _ in range(2):
        begun = len(server.requests)

        def arrived():
            return sum(record.arrivals[-1][1] for record in server.requests[begun:]
                       if "partNumber" in record.query and record.arrivals)

        pushing = start(server, "push", tree, URL, "--version", 5, "--rate", "14M")
        server.wait_for(lambda: arrived() >= 18 * MIB or pushing.poll() is not None)
        pushing.kill()
        pushing.wait()
        # The service stores a part whose last byte has arrived, a moment later.
        server.wait_for(lambda: all(record.status for record in server.requests
                                    if "partNumber" in record.query and has_arrived(record)))
    stored = [record.query["partNumber"] for record in server.requests
              if "partNumber" in record.query and record.status == 200]
    assert len(stored) >= 2 and len(stored) == len(set(stored))
    push(server, tree, "--version", 5)
    pull(server, target)
    assert not differences(comparable(tree), comparable(target))


def kinds(requests):
    """The numbers of requests as S3 prices them: PUT, LIST, GET, and those that cost nothing."""
    def kind(record):
        is_list = record.method == "GET" and not record.key
        is_free = record.method == "DELETE" or (record.method == "POST" and "delete" in record.query)
        return "LIST" if is_list else "free" if is_free else "PUT" if record.method in ("PUT", "POST") else "GET"
    return {name: sum(kind(record) == name for record in requests) for name in ("PUT", "LIST", "GET")}


@pytest.mark.parametrize("keep", [0, 1, 3])
def test_the_requests_of_a_push_and_of_a_prune(server, local, keep):
    """docs/SCALE.md counts with these numbers."""
    tree = local / "source"
    tree.mkdir()
    parts, files = 3, 2
    for name in range(files):
        (tree / str(name)).write_bytes(random.randbytes(MIB) * 16 * parts)
    kept = make_tree(local / "kept", large=MIB)
    for version in range(1, keep + 1):
        write(server, kept, version)
    push(server, tree, "--version", 9, "--claim-check-ms", 600_000, *(["--keep", keep] if keep else []))
    pushed = {"PUT": files * (1 + parts + 1) + 1 + 2 + 1, "LIST": 3, "GET": 5}
    pruned = {"PUT": 1, "LIST": 1 + 2 * (keep + 1) + 2, "GET": 2 * (keep + 1) + 6} if keep else {}
    assert kinds(server.requests) == {name: pushed[name] + pruned.get(name, 0) for name in pushed}
