# SPDX-License-Identifier: Apache-2.0
"""weightfs.s3: pushes and pulls of Python programs."""
import asyncio
import concurrent.futures
import os
import signal
import subprocess
import sys
import threading

import pytest

from harness.process import finish, read_line, wait_gone
from harness.tree import differences
from versions import MIB, SERIES, URL, comparable, keys, make_tree

weightfs = pytest.importorskip("weightfs", reason="the Python package is not installed: pip install . in the root")
s3 = pytest.importorskip("weightfs.s3", reason="another weightfs is imported: pip install . in the root")

LARGE = 40 * MIB   # bytes


def test_a_pull_gives_what_was_pushed(service, tree, target):
    pushed = s3.push(tree, URL, version=5, verify=True)
    assert pushed == (str(tree), f"{URL}/5", 5, 6, pushed.bytes, pushed.bytes, False)
    assert s3.push(os.fsencode(tree), URL, version=5) == pushed._replace(sent_bytes=0, existed=True)
    pulled = s3.pull(URL, target)
    assert (pulled.version, pulled.directory, pulled.bytes, pulled.publication) == (5, str(target), pushed.bytes, None)
    assert not differences(comparable(tree), comparable(target))


def test_paths_that_are_not_utf8_are_those_that_were_given(service, tree, target):
    odd, again = (path.with_name(os.fsdecode(b"odd\xe9")) for path in (tree, target / "again"))
    tree.rename(odd)
    again.parent.mkdir(exist_ok=True)
    assert s3.push(odd, URL, version=5).path == str(odd)
    assert s3.pull(URL, again).directory == str(again) and again.is_dir()


def test_a_publication_is_pushed_and_pulled(service, factory, weightfs_only):
    mounted = factory.mount(factory.store("512M")).path
    tree = make_tree(mounted / "step", large=MIB)
    weightfs.publish(tree, 1000)
    assert s3.push(tree, URL).version == 1000
    pulled = s3.pull(URL, mounted / "again", publish=True)
    assert pulled.publication == weightfs.publication(mounted / "again") and pulled.publication.version == 1000


def test_a_part_is_pulled(service, tree, target):
    s3.push(tree, URL, version=5)
    assert s3.pull(f"{URL}/5", target, files=["bl*", "one"]).files == 2
    with pytest.raises(TypeError, match="a list of patterns"):
        s3.pull(URL, target, files="one")


def test_options_reach_the_service(service, tree, target, caplog):
    service.objects.versioned.add("tests")
    service.requester_pays.add("tests")
    for version in (1, 2):
        s3.push(tree, URL, version=version, storage_class="STANDARD_IA", sse="aws:kms", sse_kms_key_id="key",
                requester_pays=True)
    made = [record for record in service.requests if record.method == "PUT" and record.key.endswith("/one")]
    assert made[0].headers["x-amz-storage-class"] == "STANDARD_IA"
    assert made[0].headers["x-amz-server-side-encryption-aws-kms-key-id"] == "key"
    assert s3.prune(URL, 1, requester_pays=True).kept == [2]
    assert "their space is not free" in caplog.text
    assert [one.version for one in s3.prune(URL, 1, all_versions=True, requester_pays=True).removed] == [1]
    s3.push(tree, URL, version=3, keep=1, all_versions=True, requester_pays=True)
    assert {key.split("/")[2] for _, key in service.objects.history} == {"3"}
    with pytest.raises(TypeError, match="all_versions"):
        s3.prune(URL, 1, all_versions="yes", requester_pays=True)


def test_progress_reaches_the_total(service, tree, target):
    calls = []
    pushed = s3.push(tree, URL, version=5, progress=lambda *numbers: calls.append(numbers))
    assert calls == sorted(calls) and calls[-1] == (calls[-1][1],) * 2 and calls[-1][1] >= pushed.bytes
    calls.clear()
    s3.pull(URL, target, progress=lambda *numbers: calls.append(numbers))
    assert calls == sorted(calls) and calls[-1] == (calls[-1][1],) * 2


def test_an_exception_of_progress_ends_the_transfer(service, tree):
    def fail(*_):
        raise ValueError("enough")
    with pytest.raises(ValueError, match="enough"):
        s3.push(tree, URL, version=5, progress=fail)
    assert isinstance(s3.push_async(tree, URL, version=6, progress=fail).exception(60), ValueError)
    assert not s3._running


def test_versions_and_prune(service, tree):
    for version in (1, 2, 3):
        s3.push(tree / "block", URL, version=version)
    service.fail(1, "status", method="PUT", key="/manifest$", status=403, code="AccessDenied")
    with pytest.raises(s3.S3Error, match="AccessDenied"):
        s3.push(tree / "block", URL, version=4)
    assert [(one.version, one.files, one.bytes) for one in s3.versions(URL)] == [(n, 1, 4096) for n in (3, 2, 1)]
    first = s3.versions(URL, unfinished=True)[0]
    assert (first.version, first.complete, first.files) == (4, False, None) and first.created.tzinfo is not None
    would = s3.prune(URL, 1, dry_run=True)
    assert [one.version for one in would.removed] == [2, 1] or [one.version for one in would.removed] == [1, 2]
    assert s3.prune(URL, 1) == would and would.kept == [3] and would.unfinished == [4]
    assert [one.version for one in s3.versions(URL)] == [3]


def test_errors_are_the_line_of_the_program(service, tree, target, local):
    with pytest.raises(s3.S3Error, match="cannot be opened") as caught:
        s3.push(local / "missing", URL)
    assert not str(caught.value).startswith("weightfs") and "\n" not in str(caught.value)
    with pytest.raises(OSError):
        s3.pull(URL, target, version=9)
    assert not target.exists()
    for wrong, error in (({"version": 0}, ValueError), ({"keep": "2"}, TypeError), ({"color": "red"}, TypeError),
                         ({"verify": "no"}, TypeError), ({"connections": 300}, ValueError)):
        with pytest.raises(error):
            s3.push(tree, URL, **wrong)


def test_the_options_of_the_connection(service, tree, monkeypatch):
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    s3.push(tree / "one", URL, version=1, endpoint_url=service.url, region="us-east-1", path_style=True, connections=2)
    assert f"{SERIES}/1/one" in keys(service)


def test_a_missing_program(tree, monkeypatch, local):
    monkeypatch.setenv("WEIGHTFS_PROGRAM", str(local / "missing"))
    for arguments in ({}, {"program": local / "missing too"}):
        with pytest.raises(FileNotFoundError, match="WEIGHTFS_PROGRAM or in PATH"):
            s3.push(tree, URL, **arguments)
    monkeypatch.delenv("WEIGHTFS_PROGRAM")
    monkeypatch.setenv("PATH", str(local))
    with pytest.raises(FileNotFoundError):
        s3.versions(URL)


def test_transfers_of_several_threads(service, tree, target):
    transfers = [s3.push_async(tree, f"{URL}-{number}", version=1) for number in range(3)]
    called = threading.Event()
    transfers[0].add_done_callback(lambda transfer: called.set())
    done, _ = concurrent.futures.wait(transfers, timeout=100)
    assert len(done) == 3 and called.wait(60) and not any(one.running() or one.cancelled() for one in transfers)
    assert [one.result().url for one in transfers] == [f"{URL}-{number}/1" for number in range(3)]
    assert s3.pull_async(f"{URL}-2", target).result(100).version == 1
    assert not transfers[0].cancel()


def test_cancel_ends_the_program_and_the_same_push_continues(service, tree):
    service.fail(1, "silence", key="/large$")
    pushing = s3.push_async(tree, URL, version=5)
    service.wait_for_fault()
    assert pushing.running()
    with pytest.raises(concurrent.futures.TimeoutError):
        pushing.result(0.01)
    assert pushing.cancel()
    with pytest.raises(concurrent.futures.CancelledError):
        pushing.result(60)
    assert pushing.cancelled() and not s3._running
    service.heal()
    assert not s3.versions(URL) and s3.push(tree, URL, version=5).version == 5


def test_await(service, tree, target):
    async def both():
        await s3.push_async(tree, URL, version=5)
        return await s3.pull_async(URL, target)

    async def canceled():
        service.fail(1, "silence", key="/large$")
        task = asyncio.ensure_future(s3.push_async(tree, URL, version=6))
        await asyncio.get_running_loop().run_in_executor(None, service.wait_for_fault)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    assert asyncio.run(both()).version == 5
    asyncio.run(canceled())
    service.wait_for(lambda: not s3._running)


CHILD = """
import os, sys
from weightfs import s3
tree, url, how = sys.argv[1:]
if how == "async":
    pushing = s3.push_async(tree, url, version=5)
    while not any(run._child for run in s3._running):
        pass
    print(next(iter(s3._running))._child.pid, flush=True)
    sys.stdin.readline()
else:
    try:
        s3.push(tree, url, version=5, progress=print)
    except KeyboardInterrupt:
        print("interrupted", len(s3._running), flush=True)
"""


@pytest.fixture
def child(processes, tree):
    """A function that starts a program which pushes the tree."""
    def run(how):
        return processes.start([sys.executable, "-c", CHILD, tree, URL, how], stdin=subprocess.PIPE, stderr=None)
    return run


@pytest.mark.parametrize("how", ["exit", "kill"])
def test_the_program_ends_with_the_interpreter(service, child, how):
    if how == "kill" and not s3._ends_with_parent():
        pytest.skip("needs setpriv with --pdeathsig (util-linux 2.33)")
    service.fail(1, "silence", key="/large$")
    parent = child("async")
    pid = int(read_line(parent))
    service.wait_for_fault()
    if how == "exit":
        parent.stdin.write("\n")
        parent.stdin.flush()
    else:
        parent.kill()
    assert wait_gone(pid, 60)
    service.heal()
    assert not s3.versions(URL)


def test_ctrl_c_ends_the_program(service, child):
    service.fail(1, "silence", key="/large$")
    parent = child("sync")
    service.wait_for_fault()
    parent.send_signal(signal.SIGINT)
    assert finish(parent).out.splitlines()[-1] == "interrupted 0"
    service.heal()
    assert not s3.versions(URL)
