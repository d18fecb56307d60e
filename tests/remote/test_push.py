# SPDX-License-Identifier: Apache-2.0
"""weightfs push: a version exists completely or not at all, and a push that was interrupted is continued."""
import errno
import json
import os
import random
import re
import shutil
import signal
import time

import pytest

from harness import process, s3_versions
from harness.filesystems import program
from harness.filesystems import weightfs as plain
from harness.foreign_fuse import ForeignFuse
from harness.s3_probe import clean_environment
from harness.s3_server import ACCESS_KEY, SECRET_KEY, S3Server
from harness.s3_sink import S3Sink
from harness.tree import differences
from versions import MIB, SERIES, URL, comparable, keys, make_tree, pull, put, refused, weightfs


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


def test_the_service_of_the_measurements_accepts_a_push(tmp_path):
    """bench/transfers.py pushes to it: one body that it discards, one of several parts, and one that it keeps."""
    for name, size in (("small", 1000), ("body", 8 * MIB), ("parts", 40 * MIB)):
        (tmp_path / name).write_bytes(random.randbytes(size))
    with S3Sink() as sink:
        report = json.loads(plain("push", tmp_path, "s3://tests/1", "--json",
                                  env=clean_environment(sink.environment())).out)
    assert (report["files"], report["sent_bytes"]) == (3, 48 * MIB + 1000)


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


def test_a_time_that_a_manifest_cannot_have_becomes_its_last_one(server, tree, target):
    os.utime(tree / "block", (12_000_000_000, 12_000_000_000))   # in the year 2350
    push(server, tree)
    pull(server, target)
    assert (target / "block").stat().st_mtime > 9_000_000_000


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


def test_damage_in_the_bucket_is_noticed_with_verify(server, tree, target):
    server.fail(1, "rot", method="PUT", key="/deep/er/")
    server.fail(2, "rot", method="PUT", key="/large$")
    push(server, tree, "--version", 5, "--verify")
    pull(server, target)
    assert not differences(comparable(tree), comparable(target))


def test_damage_of_any_request_leaves_no_damaged_version(server, local, target):
    """A manifest is read back, and written again."""
    tree = make_tree(local / "source", large=MIB)
    for number in range(600):
        (tree / f"file-with-a-long-name-so-that-the-manifest-is-large-{number}").write_bytes(b"")
    server.fail(1, "rot", key="/manifest$", method="PUT")
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


@pytest.mark.parametrize("key", ["/sums/0$", "/large$", "/empty$"])
def test_verify_sends_again_what_is_missing(server, tree, target, key):
    """Only objects of the version are deleted; a DELETE without a key would delete the bucket."""
    server.fail(1, "status", method="HEAD" if key == "/empty$" else "GET", key=key, status=404, code="NoSuchKey")
    push(server, tree, "--version", 5, "--verify")
    assert len([record for record in server.requests if record.method == "PUT" and re.search(key, record.key)]) >= 2 \
        or key == "/large$"   # in parts
    assert all(record.key for record in server.requests if record.method == "DELETE")
    assert comparable_pull(server, target, tree)


def test_verify_names_what_was_damaged_later(server, tree):
    push(server, tree, "--version", 5)
    key = f"{SERIES}/5/large"
    damaged = bytearray(body(server, key))
    damaged[MIB] ^= 1
    server.objects.put("tests", key, bytes(damaged), {})
    warning = weightfs(server, "push", tree, URL, "--version", 5, "--verify").err
    assert "was damaged, and all of it was sent again" in warning and f"s3://tests/{key}" in warning
    assert f"offset {MIB} " in warning


def test_verify_reads_a_version_and_names_its_damage(server, tree):
    push(server, tree, "--version", 5)
    assert weightfs(server, "verify", f"{URL}/5").out.endswith(": no damage\n")
    report = json.loads(weightfs(server, "verify", URL, "--json").out)   # the greatest
    assert report["url"] == f"{URL}/5" and report["bytes"] > MIB and report["damage"] == ""
    key = f"{SERIES}/5/large"
    damaged = bytearray(body(server, key))
    damaged[MIB] ^= 1
    server.objects.put("tests", key, bytes(damaged), {})
    report = json.loads(weightfs(server, "verify", f"{URL}/5", "--json", codes=(4,)).out)
    assert f"s3://tests/{key}: the block at offset {MIB} differs" in report["damage"]
    server.objects.delete("tests", key)
    assert "is damaged" in weightfs(server, "verify", f"{URL}/5", codes=(4,)).out
    assert "no version" in weightfs(server, "verify", f"{URL}x", codes=(8,)).err


def sent_bodies(records):
    """The files and parts of files among the requests that the service has stored."""
    return [(record.key, record.query.get("partNumber")) for record in records
            if record.method == "PUT" and record.status == 200 and "/.weightfs/" not in record.key]


def test_a_killed_push_is_continued(server, start, local, target):
    """Bytes that the service has stored before a kill are not sent again, and no version exists before the end."""
    tree = make_tree(local / "source", large=70 * MIB)
    kills, stored = 0, set()
    for number in range(1, 40, 3):
        server.fail(number, "silence")   # the request during which the push is killed
        begun = len(server.requests)
        pushing = start(server, "push", tree, URL, "--json")
        server.wait_for(lambda: any(record.fault for record in server.requests[begun:]) or pushing.poll() is not None)
        pushing.kill()
        pushing.communicate()
        sent = sent_bodies(server.requests[begun:])
        assert not stored.intersection(sent) and len(set(sent)) == len(sent)
        stored.update(sent)
        server.heal()
        if pushing.returncode == 0:
            break
        kills += 1
        if any(key.endswith("/manifest") for key in keys(server)):
            assert comparable_pull(server, target.with_name(f"early-{number}"), tree)
    assert kills >= 4 and stored
    begun = len(server.requests)
    report = push(server, tree)
    assert not stored.intersection(sent_bodies(server.requests[begun:])) and report["sent_bytes"] < report["bytes"]
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


def test_a_push_that_was_taken_over_makes_no_version(server, start, tree, local, target):
    """The first push reads its claim again before it writes the manifest; that request is held."""
    sums = server.fail(1, "hold", method="PUT", key="/sums/0$")
    first = start(server, "push", tree, URL, "--version", "5", "--claim-check-ms", "600000")
    server.wait_for_fault()
    server.fail(1, "hold", method="GET", key="/claim$")
    server.heal(sums)
    server.wait_for(lambda: server.requests[-1].fault and server.requests[-1].key.endswith("/claim"))
    assert f"{SERIES}/5/large" in keys(server)
    other = make_tree(local / "other")
    with S3Server(objects=server.objects) as without_faults:
        push(without_faults, other, "--version", 5, "--take-over")
    server.heal()
    finished = process.finish(first, codes=(1,))
    assert "was taken over from" in finished.err and finished.err.count("\n") == 1
    pull(server, target)
    assert not differences(comparable(other), comparable(target))


def test_a_file_that_changes_during_the_push(server, start, tree):
    server.fail(1, "hold", method="PUT", key="/sums/0$")
    running = start(server, "push", tree, URL, "--version", "5")
    server.wait_for_fault()
    (tree / "one").write_bytes(b"2")
    server.heal()
    assert "one: changed during the push" in process.finish(running, codes=(1,)).err
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


def test_sigint_ends_a_push_that_the_same_command_continues(server, start, tree):
    server.fail(1, "silence", key="/large$")
    running = start(server, "push", tree, URL)
    server.wait_for_fault()
    running.send_signal(signal.SIGINT)
    assert "continues the push" in process.finish(running, codes=(1,)).err
    server.heal()
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


def test_a_publication_is_pushed_as_its_version(server, mounted):
    tree = make_tree(mounted / "step")
    plain("publish", tree, "--version", 1000)
    assert push(server, tree)["version"] == 1000
    assert "cannot be pushed as version 7" in refused(server, "push", tree, URL, "--version", 7)
    pull(server, mounted / "again", "--publish")
    assert not differences(comparable(tree), comparable(mounted / "again"))
    with pytest.raises(PermissionError):
        (mounted / "again/one").write_bytes(b"changed")


def test_watch_pushes_what_is_published(server, start, mounted):
    run = mounted / "run"
    for step in (1, 2):
        make_tree(run / f"step-{step}", large=MIB)
        plain("publish", run / f"step-{step}", "--version", step)
    (run / "unfinished").mkdir()
    watching = start(server, "push", "--watch", run, URL, "--json")
    assert [json.loads(process.read_line(watching))["version"] for _ in range(2)] == [1, 2]
    make_tree(run / "step-3", large=MIB)
    plain("publish", run / "step-3", "--version", 3)
    assert json.loads(process.read_line(watching))["version"] == 3
    watching.send_signal(signal.SIGTERM)
    process.finish(watching)
    assert f"{SERIES}/3/.weightfs/manifest" in keys(server) and not keys(server, f"{SERIES}/unfinished")


def test_two_pushes_of_one_publication(server, start, mounted, target):
    """Both have the same bytes, so both may send them; the version exists once and is whole."""
    tree = make_tree(mounted / "step", large=40 * MIB)
    plain("publish", tree)
    running = [start(server, "push", tree, URL) for _ in range(2)]
    for one in running:
        assert process.finish(one).err == ""
    pull(server, target)
    assert not differences(comparable(tree), comparable(target))


@pytest.mark.limit(300)
def test_kills_of_the_gateway_and_the_push(radosgw, start, local, request, restart_limit):
    """With Ceph: a version is listed only when all of it can be pulled, and stays."""
    rounds = request.config.getoption("rounds") or (100 if request.config.getoption("full") else 3)
    generator = random.Random(1)
    made, killed, gateway_kills = [], 0, 0
    for number in range(1, rounds + 1):
        restart_limit()
        tree, series = make_tree(local / "source", large=40 * MIB), f"s3://tests/kills/round-{number}"
        expected = comparable(tree)
        for _ in range(3):
            running = start(radosgw, "push", tree, series)
            time.sleep(generator.uniform(0, 0.6))
            if generator.random() < 0.5:
                radosgw.kill("gateway")
                gateway_kills += 1
                time.sleep(generator.uniform(0, 0.3))
                radosgw.start_gateway()
            running.kill()
            running.communicate()
            killed += running.returncode == -signal.SIGKILL
            if json.loads(weightfs(radosgw, "versions", series, "--json").out)["versions"]:
                assert_pulled(radosgw, series, local / "pulled", expected)
                break
        push(radosgw, tree, url=series)
        assert_pulled(radosgw, series, local / "pulled", expected)
        made.append((series, expected))
        shutil.rmtree(tree)
    for series, expected in made:
        restart_limit()
        assert_pulled(radosgw, series, local / "pulled", expected)
    print(f"{rounds} rounds, {killed} pushes and {gateway_kills} gateways killed; all versions are equal")


def assert_pulled(service, series, target, expected):
    pull(service, target, url=series)
    assert not differences(expected, comparable(target))
    shutil.rmtree(target)


def test_plain_programs_read_the_objects(server, tree, local):
    """A file that boto3 downloads is the file that was pushed, and safetensors opens it."""
    boto3 = pytest.importorskip("boto3", reason="boto3 is not installed: pip install boto3")
    safetensors = pytest.importorskip("safetensors.torch", reason="needs safetensors: scripts/setup installs it")
    torch = pytest.importorskip("torch", reason="needs torch: scripts/setup installs it")
    tensors = {"weight": torch.randn(700, 1001), "scale": torch.randn(13).to(torch.bfloat16)}
    safetensors.save_file(tensors, tree / "deep/model.safetensors", {"format": "pt"})
    push(server, tree, "--version", 5)
    client = boto3.client("s3", endpoint_url=server.url, aws_access_key_id=ACCESS_KEY,
                          aws_secret_access_key=SECRET_KEY, region_name="us-east-1")
    for name in ("large", "deep/odd", "deep/model.safetensors"):
        client.download_file("tests", f"{SERIES}/5/{name}", str(local / "downloaded"))
        assert (local / "downloaded").read_bytes() == (tree / name).read_bytes()
    with safetensors.safe_open(local / "downloaded", "pt") as opened:
        assert sorted(opened.keys()) == sorted(tensors)
        assert all(torch.equal(opened.get_tensor(name), value) for name, value in tensors.items())


@pytest.mark.parametrize("ioctl", [0, *(getattr(errno, name) for name in (
    "EINVAL", "EPERM", "EACCES", "EIO", "ENOTTY", "ENOSYS", "EOPNOTSUPP", "EBUSY", "ENODATA"))])
def test_other_fuse_filesystems(server, local, target, ioctl):
    """They answer the question for a publication, which they do not know, with any error, or with success."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    (local / "point").mkdir()
    files = {"small": b"1" * 5000, "large": random.randbytes(2 * MIB)}
    with ForeignFuse(local / "point", files, ioctl):
        assert push(server, local / "point", "--version", 5)["files"] == 2
        for command, why in (("publish", "not on a weightfs mount"), ("verify", "nor in a mount of weightfs"),
                             ("stats", "not in a mount of weightfs"), ("info", "nor in a mount of weightfs")):
            assert why in process.run([program(), command, local / "point"], codes=(1, 8)).err
    pull(server, target)
    assert {path.name: path.read_bytes() for path in target.iterdir()} == files
