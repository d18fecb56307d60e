# SPDX-License-Identifier: Apache-2.0
"""Resources that the system may refuse, and resources that a handle must not exhaust."""

import gc
import os

import pytest
import torch

import weightfs
from harness import needs
from tensors import random_tensor


def test_without_the_right_to_lock_the_error_names_the_limit(child):
    out = child("""
import os, resource, torch, weightfs, weightfs._core.memory   # which nobody may perhaps not search for
handle = weightfs.aio_handle()
resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))
if os.geteuid() == 0:
    os.setresuid(65534, 65534, 65534)
try:
    handle.new_cpu_locked_tensor(1 << 20, torch.empty(0))
except OSError as error:
    print(error)
small = handle.new_cpu_locked_tensor(1024, torch.empty(0))
print(handle.is_pinned(small))
""")
    assert "RLIMIT_MEMLOCK is 65536 bytes" in out
    assert out.endswith("True\n")


@needs.root
@pytest.mark.alone
def test_without_contexts_the_error_names_the_limit_and_nothing_hangs(child):
    """Runs in a child that uses up a lowered limit. The limit and the usage are restored when it ends."""
    limit = "/proc/sys/fs/aio-max-nr"
    with open(limit, encoding="ascii") as stream:
        before = stream.read()
    try:
        out = child("""
import errno, weightfs
from weightfs.deepnvme import AsyncIOBuilder
used = int(open("/proc/sys/fs/aio-nr").read())
open("/proc/sys/fs/aio-max-nr", "w").write(str(used + 3000))
handles = []
try:
    while len(handles) < 1000:
        handles.append(weightfs.aio_handle(queue_depth=512))
except OSError as error:
    print(error.errno == errno.EAGAIN, error)
print(len(handles), AsyncIOBuilder().is_compatible(verbose=True))
# The last ones had to do with smaller rings, and work.
for handle in handles:
    assert handle.sync_pwrite(b"text" * 100_000, "file") == 1
handles.clear()
print(AsyncIOBuilder().is_compatible())
""")
    finally:
        with open(limit, "w", encoding="ascii") as stream:
            stream.write(before)
    assert "True [Errno 11] no room for asynchronous transfers: /proc/sys/fs/aio-max-nr is " in out
    assert "sysctl -w fs.aio-max-nr=" in out
    assert out.endswith("True\n")
    assert 1 < int(out.splitlines()[-2].split()[0]) < 1000


def test_no_descriptor_is_left_behind(folder, handle):
    def count():
        return len(os.listdir("/proc/self/fd"))

    tensor = random_tensor(300_001)
    handle.sync_pwrite(tensor, folder / "file")
    gc.collect()   # descriptors of earlier tests
    before = count()
    for i in range(50):
        handle.sync_pwrite(tensor, folder / "file")
        handle.async_pread(torch.empty_like(tensor), folder / "file")
        handle.async_pwrite(tensor, folder / "other", 13)
        handle.sync_pread(torch.empty(400_000, dtype=torch.uint8), folder / "file")
        handle.sync_pread(tensor, folder / "missing")
        handle.async_pwrite(tensor, "/dev/full", 0)
        cancelled = handle.write_async(tensor, folder / "third", durable=True, atomic=True)
        cancelled.cancel()
        cancelled.wait()   # wait() does not wait for it
        try:
            handle.wait()
        except OSError:
            pass
    assert count() == before


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_a_forked_child_gets_an_error_and_exits_cleanly(folder, handle):
    tensor = random_tensor(1 << 20)
    assert handle.async_pwrite(tensor, folder / "file") == 0
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            if handle.sync_pwrite(tensor, folder / "other") == -1 and "fork" in str(handle.last_error):
                with weightfs.aio_handle() as own:
                    status = 0 if own.sync_pwrite(tensor, folder / "other") == 1 else 2
            handle.close()
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0
    assert handle.wait() == 1
    assert (folder / "file").read_bytes() == (folder / "other").read_bytes()


def test_a_writer_that_may_not_create_leaves_nothing(child, folder):
    if os.geteuid() != 0:
        pytest.skip("needs root to become somebody else")
    out = child(f"""
import os, weightfs
handle = weightfs.aio_handle()
os.setresuid(65534, 65534, 65534)
print(handle.sync_pwrite(b"text", {str(folder / "file")!r}), type(handle.last_error).__name__)
""")
    assert out == "-1 PermissionError\n"
    assert list(folder.iterdir()) == []
