# SPDX-License-Identifier: Apache-2.0
"""weightfs push: a version exists completely or not at all, and a push that was interrupted is continued."""
import json
import os
import random
import signal
import time

import pytest

from harness import s3_versions
from harness.filesystems import wait_until, weightfs as plain
from harness.tree import differences
from versions import SERIES, URL, comparable, environment, keys, make_tree, pull, put, refused, start, weightfs

MIB = 1 << 20


def push(server, path, *words, url=URL, **options):
    return json.loads(weightfs(server, "push", path, url, "--json", *words, **options).out)


def comparable_pull(server, target, tree):
    pull(server, target)
    return not differences(comparable(tree), comparable(target))


def body(server, key):
    return bytes(server.objects.buckets["tests"][key].body)


def test_the_objects_are_the_plain_files(server, tree):
    report = push(server, tree, "--version", 5)
    assert (report["version"], report["files"], report["existed"]) == (5, 6, False)
    assert report["sent_bytes"] == report["bytes"] == sum(path.stat().st_size for path in tree.rglob("*")
                                                          if path.is_file() and not path.is_symlink())
    for path in tree.rglob("*"):
        if path.is_file() and not path.is_symlink():
            assert body(server, f"{SERIES}/5/{path.relative_to(tree)}") == path.read_bytes()
    own = [key for key in keys(server) if "/.weightfs/" in key]
    assert own == [f"{SERIES}/5/.weightfs/{name}" for name in ("claim", "manifest", "sums/0")]
    assert not server.objects.open_uploads("tests", "")


def test_a_push_makes_what_the_other_writer_makes(server, tree):
    """The format has a second implementation in Python."""
    push(server, tree, "--version", 5)
    s3_versions.write(put(server), tree, "other", 5)
    ours, theirs = ([json.loads(line) for line in body(server, f"{name}/5/.weightfs/manifest").splitlines()]
                    for name in (SERIES, "other"))
    assert body(server, f"{SERIES}/5/.weightfs/sums/0") == body(server, "other/5/.weightfs/sums/0")
    assert ours[1:-1] == theirs[1:-1]


def test_a_pull_gives_the_same_tree(server, tree, target):
    push(server, tree)
    pull(server, target)
    assert not differences(comparable(tree), comparable(target))


def test_a_single_file(server, tree, target):
    assert push(server, tree / "block", "--version", 1)["files"] == 1
    pull(server, target)
    assert (target / "block").read_bytes() == (tree / "block").read_bytes() and len(list(target.iterdir())) == 1


def test_a_second_push_sends_nothing(server, tree):
    first = push(server, tree)
    before = len(server.requests)
    assert push(server, tree) == {**first, "existed": True, "sent_bytes": 0}
    assert all(record.method == "GET" for record in server.requests[before:])


def test_another_source_does_not_replace_a_version(server, tree, local):
    push(server, tree, "--version", 5)
    error = refused(server, "push", make_tree(local / "other"), URL, "--version", 5)
    assert "exists already, from" in error and "another version" in error
    assert body(server, f"{SERIES}/5/one") == (tree / "one").read_bytes()


@pytest.mark.parametrize("kind", ["status", "reset", "lost", "cut"])
def test_a_fault_at_any_request_is_survived(server, tree, target, kind, request):
    for at in range(1, 19, 1 if request.config.getoption("full") else 2):
        server.fail(at, kind)
        push(server, tree, "--version", at)
        pull(server, target.with_name(f"at-{at}"), "--version", at)
        server.heal()
        assert not differences(comparable(tree), comparable(target.with_name(f"at-{at}")))


def test_damage_on_the_way_to_the_bucket_is_noticed_with_verify(server, tree, target):
    server.fail(1, "flip_request", method="PUT", key="/deep/er/")
    server.fail(2, "flip_request", method="PUT", key="/large$")
    push(server, tree, "--version", 5, "--verify")
    pull(server, target)
    assert not differences(comparable(tree), comparable(target))


def test_damage_of_any_request_leaves_no_damaged_version(server, local, target):
    """Small bodies are signed with their hash. A manifest of 64 KiB is not: it is read back and written again."""
    tree = make_tree(local / "source", large=MIB)
    for number in range(600):
        (tree / f"file-with-a-long-name-so-that-the-manifest-is-large-{number}").write_bytes(b"")
    server.fail(1, "flip_request", key="/manifest$", method="PUT")
    push(server, tree, "--version", 5, "--verify")
    assert comparable_pull(server, target, tree)
    tree = make_tree(local / "small", large=MIB)
    for at in range(1, 20, 2):
        server.fail(at, "flip_request")
        for _ in range(3):
            if weightfs(server, "push", tree, URL, "--version", 10 + at, "--verify", codes=(0, 1)).code == 0:
                break
            server.heal()
        else:
            raise AssertionError(f"the push does not recover from request {at}")
        server.heal()
        assert comparable_pull(server, target.with_name(f"at-{at}"), tree)


def test_a_rate_limits_the_push(server, tree):
    begun = time.monotonic()
    push(server, tree, "--rate", "8M")
    assert time.monotonic() - begun > 1   # 17 MiB
    assert "--rate" in weightfs(server, "push", tree, URL, "--rate", "much", codes=(2,)).err


def test_verify_names_what_was_damaged_later(server, tree):
    push(server, tree, "--version", 5)
    key = f"{SERIES}/5/large"
    damaged = bytearray(body(server, key))
    damaged[MIB] ^= 1
    server.objects.put("tests", key, bytes(damaged), {})
    error = refused(server, "push", tree, URL, "--version", 5, "--verify")
    assert f"s3://tests/{key}" in error and str(MIB) in error


def test_a_killed_push_is_continued(server, local, target):
    """Whatever was sent before the kill is not sent again, and no version exists before the end."""
    tree = make_tree(local / "source", large=70 * MIB)
    for number in range(1, 30, 3):
        server.fail(number, "silence")   # the request during which the push is killed
        process = start(server, "push", tree, URL, "--json")
        wait_until(lambda: any(record.fault for record in server.requests) or process.poll() is not None)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        ended = not any(record.fault for record in server.requests)
        server.requests.clear()
        if ended:
            break
        listed = [key for key in keys(server) if key.endswith("/manifest")]
        assert not listed or comparable_pull(server, target.with_name(f"early-{number}"), tree)
        server.heal()
    server.heal()
    push(server, tree)
    assert comparable_pull(server, target, tree)
    assert not server.objects.open_uploads("tests", "")


def test_parts_that_are_there_are_not_sent_again(server, local):
    tree = make_tree(local / "source", large=70 * MIB)
    server.fail(2, "status", method="POST", key="/large$", status=403, code="AccessDenied")   # the completion
    refused(server, "push", tree, URL, "--version", 5)
    report = push(server, tree, "--version", 5)
    assert report["bytes"] > 70 * MIB
    puts = [record for record in server.requests if record.method == "PUT" and record.key.endswith("/large")]
    assert len(puts) == 5   # five parts, each once


def test_an_unfinished_push_of_somebody_else(server, tree, local, target):
    server.fail(1, "status", method="PUT", key="/manifest$", status=403, code="AccessDenied")
    refused(server, "push", tree, URL, "--version", 5)
    other = make_tree(local / "other")
    error = refused(server, "push", other, URL, "--version", 5)
    assert "another push began this version" in error and "--take-over" in error
    push(server, other, "--version", 5, "--take-over")
    pull(server, target)
    assert not differences(comparable(other), comparable(target))
    assert "exists already" in refused(server, "push", tree, URL, "--version", 5)


def test_a_push_that_was_taken_over_makes_no_version(server, tree, local, target):
    """The first push stands still before its manifest while the second takes its version over."""
    server.fail(2, "slow", method="GET", key="/claim$", rate=5000)   # the look before the manifest takes seconds
    first = start(server, "push", tree, URL, "--version", "5")
    wait_until(lambda: f"{SERIES}/5/large" in keys(server))
    other = make_tree(local / "other")
    push(server, other, "--version", 5, "--take-over")
    first.communicate(timeout=100)
    pull(server, target)
    assert not differences(comparable(other), comparable(target))


def test_a_file_that_changes_during_the_push(server, tree):
    server.fail(1, "status", method="PUT", key="/sums/0$", retry_after=3)
    running = start(server, "push", tree, URL, "--version", "5")
    wait_until(lambda: any(record.key.endswith("/sums/0") for record in server.requests))
    (tree / "one").write_bytes(b"2")
    error = running.communicate()[1]
    assert running.returncode == 1 and "one: changed during the push" in error
    assert f"{SERIES}/5/.weightfs/manifest" not in keys(server)
    assert "another push began this version" in refused(server, "push", tree, URL, "--version", 5)


def test_what_cannot_be_pushed(server, tree, local):
    os.mkfifo(tree / "fifo")
    assert "a FIFO" in refused(server, "push", tree, URL)
    (tree / "fifo").unlink()
    (tree / os.fsdecode(b"not\xffutf8")).write_bytes(b"")
    assert "not UTF-8" in refused(server, "push", tree, URL)
    assert "cannot be opened" in refused(server, "push", local / "missing", URL)
    reserved = local / "reserved"
    (reserved / ".weightfs").mkdir(parents=True)
    assert "reserved" in refused(server, "push", reserved, URL)
    assert not keys(server)
    for words in ([], [URL], [tree], [tree, "http://x/y"], [tree, "s3://"], [tree, URL, "more"]):
        finished = weightfs(server, "push", *words, codes=(1, 2))
        assert finished.err


def test_sigint_ends_a_push_that_the_same_command_continues(server, tree):
    server.fail(1, "silence", key="/large$")
    running = start(server, "push", tree, URL)
    wait_until(lambda: any(record.key.endswith("/large") for record in server.requests))
    running.send_signal(signal.SIGINT)
    error = running.communicate(timeout=30)[1]
    assert running.returncode == 1 and "continues the push" in error
    push(server, tree)


def test_keep_removes_older_versions(server, tree):
    for version in range(1, 5):
        (tree / "one").write_bytes(b"%d" % version)
        push(server, tree, "--version", version, "--keep", 2)
    listed = json.loads(weightfs(server, "versions", URL, "--json").out)
    assert [entry["version"] for entry in listed["versions"]] == [4, 3]
    assert not keys(server, f"{SERIES}/1/") and not keys(server, f"{SERIES}/2/")


@pytest.fixture
def mounted(factory, weightfs_only):
    return factory.mount(factory.store("512M")).path


def test_a_publication_is_pushed_as_its_version(server, mounted, target):
    tree = make_tree(mounted / "step")
    plain("publish", tree, "--version", 1000)
    assert push(server, tree)["version"] == 1000
    assert "cannot be pushed as version 7" in refused(server, "push", tree, URL, "--version", 7)
    pull(server, mounted / "again", "--publish")
    assert not differences(comparable(tree), comparable(mounted / "again"))
    with pytest.raises(PermissionError):
        (mounted / "again/one").write_bytes(b"changed")


def test_watch_pushes_what_is_published(server, mounted):
    run = mounted / "run"
    for step in (1, 2):
        make_tree(run / f"step-{step}", large=MIB)
        plain("publish", run / f"step-{step}", "--version", step)
    (run / "unfinished").mkdir()
    watching = start(server, "push", "--watch", run, URL, "--json")
    try:
        assert [json.loads(watching.stdout.readline())["version"] for _ in range(2)] == [1, 2]
        make_tree(run / "step-3", large=MIB)
        plain("publish", run / "step-3", "--version", 3)
        assert json.loads(watching.stdout.readline())["version"] == 3
    finally:
        watching.send_signal(signal.SIGTERM)
    assert watching.wait(20) == 0
    assert f"{SERIES}/3/.weightfs/manifest" in keys(server) and not keys(server, f"{SERIES}/unfinished")


def test_two_pushes_of_one_publication(server, mounted, target):
    """Both have the same bytes, so both may send them; the version exists once and is whole."""
    tree = make_tree(mounted / "step", large=40 * MIB)
    plain("publish", tree)
    running = [start(server, "push", tree, URL) for _ in range(2)]
    for one in running:
        assert one.communicate(timeout=100)[1] == "" and one.returncode == 0
    pull(server, target)
    assert not differences(comparable(tree), comparable(target))


def test_kills_of_the_gateway_and_the_push(radosgw, local, request):
    """With Ceph: a version is listed only when all of it can be pulled."""
    rounds = request.config.getoption("rounds") or (100 if request.config.getoption("full") else 3)
    generator = random.Random(1)
    for number in range(1, rounds + 1):
        tree = make_tree(local / f"source-{number}", large=40 * MIB)
        series = f"s3://tests/kills/{number}"
        for _ in range(3):
            running = start(radosgw, "push", tree, series)
            time.sleep(generator.uniform(0, 0.6))
            if generator.random() < 0.5:
                radosgw.kill("gateway")
                time.sleep(generator.uniform(0, 0.3))
                radosgw.start_gateway()
            running.kill()
            running.communicate()
            listed = json.loads(weightfs(radosgw, "versions", series, "--json").out)
            if listed["versions"]:
                break
        push(radosgw, tree, url=series)
        pull(radosgw, local / f"pulled-{number}", url=series)
        assert not differences(comparable(tree), comparable(local / f"pulled-{number}"))


def test_plain_programs_read_the_objects(server, tree, local):
    boto3 = pytest.importorskip("boto3", reason="boto3 is not installed: pip install boto3")
    push(server, tree, "--version", 5)
    settings = environment(server)
    client = boto3.client("s3", endpoint_url=server.url, aws_access_key_id=settings["AWS_ACCESS_KEY_ID"],
                          aws_secret_access_key=settings["AWS_SECRET_ACCESS_KEY"], region_name="us-east-1")
    client.download_file("tests", f"{SERIES}/5/large", str(local / "large"))
    assert (local / "large").read_bytes() == (tree / "large").read_bytes()
