# SPDX-License-Identifier: Apache-2.0
"""Operations of a handle do not wait for those that a mount or a callback holds up."""

import signal
import threading

import pytest
import torch

import weightfs
from harness import process
from operations import StandingWrite
from tensors import content, random_tensor

pytestmark = pytest.mark.usefixtures("weightfs_only")
MIB = 1 << 20


def expect_others_end(handle, folder, callbacks=True):
    """Operations on files elsewhere end."""
    tensor = random_tensor(MIB + 100)
    for path in (folder / "small", folder / "large"):
        reports, called = [], threading.Event()
        part = tensor[:1000] if path.name == "small" else tensor
        progress = (lambda *done, reports=reports: reports.append(done)) if callbacks else None
        future = handle.write_async(part, path, durable=True, atomic=True, progress=progress)
        if callbacks:
            future.add_done_callback(lambda _, called=called: called.set())
        future.result(60)
        target = torch.empty_like(part)
        handle.read_async(target, path).result(60)
        assert torch.equal(target, part)
        if callbacks:
            assert called.wait(60)
            assert reports[-1] == (part.nbytes, part.nbytes)


def test_a_commit_that_waits_for_the_mount_delays_no_other_operation(work, mount, local):
    """The leased write transfers to the device by itself. Its commit is a request to the daemon, which is stopped."""
    handle = weightfs.Handle(direct="auto")
    tensor = random_tensor(64 * MIB)
    pid = mount.pid
    while True:
        future = handle.write_async(tensor, work / "file")
        process.kill(pid, signal.SIGSTOP)
        try:
            if not future.done():
                expect_others_end(handle, local)
                assert not future.done()
                break
        finally:
            process.kill(pid, signal.SIGCONT)
    future.result(60)
    assert handle.direct_operations >= 1
    assert (work / "file").read_bytes() == content(tensor)
    handle.close()


def test_a_callback_that_blocks_delays_no_other_operation(local):
    handle = weightfs.Handle()
    standing = StandingWrite(handle, random_tensor(MIB), local / "standing")
    expect_others_end(handle, local, callbacks=False)
    assert not standing.future.done()
    standing.go()
    standing.future.result(60)
    handle.close()
