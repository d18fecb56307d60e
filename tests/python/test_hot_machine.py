# SPDX-License-Identifier: Apache-2.0
"""Hot memory by machine: on a mount of an ordinary user, without huge pages, and under memory pressure."""

import errno
import json
import mmap
import os
import sys

import pytest

import weightfs
import weightfs.safetensors
from harness import needs, process
from harness.filesystems import wait_until
from harness.machine import meminfo, without_huge_pages
from harness.syscalls import FALLOC_KEEP_SIZE, FALLOC_PUNCH_HOLE, errno_of, fallocate
from harness.user_mount import mount_of_user
from harness.users import NOBODY, call_as
from test_hot_files import LOADS, SIZE, STORE_SIZE, equal, hot, info, save, tensors_of

pytestmark = pytest.mark.usefixtures("weightfs_only")


def try_to_change(path):
    """Of the memory of a file that this user maps: its name, whether it has the content of the file, and the errors of
    each way to change it."""
    with weightfs.Handle() as handle, open(path, "rb") as file:
        shared = handle.map(file.fileno(), 0, SIZE)
        content = file.read(4096)
    os.fchmod(shared, 0o600)   # by its owner, this user
    again = os.open(f"/proc/self/fd/{shared}", os.O_RDWR)
    attempts = [lambda: os.write(shared, b"x"), lambda: os.pwrite(again, b"x", 0), lambda: os.ftruncate(again, 0),
                lambda: fallocate(again, FALLOC_PUNCH_HOLE | FALLOC_KEEP_SIZE, 0, 4096),
                lambda: mmap.mmap(shared, 4096, mmap.MAP_SHARED, mmap.PROT_WRITE),
                lambda: mmap.mmap(again, 4096, mmap.MAP_SHARED, mmap.PROT_WRITE)]
    errors = [errno_of(attempt) for attempt in attempts]
    return os.readlink(f"/proc/self/fd/{shared}"), os.pread(shared, 4096, 0) == content, errors


@needs.root
@needs.program("fusermount3", "setpriv")
def test_a_mount_of_a_user_shares_memory_that_nobody_can_change(open_fuse, factory, local, request):
    """This process computes nothing, because no thread may start in the mount namespace of the test."""
    with mount_of_user(factory, request.config.watchdog, local / "home", 256 << 20, "-o", "cache_memory=128M") as (
            point, run):
        path = point / "model.safetensors"

        def information():
            return json.loads(run("info", "--json", point).out)

        def load():
            return equal(weightfs.safetensors.load_file(path), tensors_of(0))

        assert call_as(NOBODY, lambda: len(save(path))) == 2 and call_as(NOBODY, load)
        before = information()
        assert before["hot"]["used"] >= SIZE
        assert call_as(NOBODY, load)
        after = information()
        assert after["statistics"]["device_read_bytes"] == before["statistics"]["device_read_bytes"]
        assert after["hot"]["mapped"] >= before["hot"]["mapped"] + SIZE
        name, same, errors = call_as(NOBODY, try_to_change, path)
        assert name.startswith("/memfd:weightfs") and same
        assert errors == [errno.EBADF, errno.EPERM, errno.EPERM, errno.EPERM, errno.EACCES, errno.EPERM]
        assert call_as(NOBODY, load)


@pytest.mark.alone
@pytest.mark.parametrize("kind", LOADS)
def test_the_second_load_reads_no_device_without_huge_pages(factory, kind):
    mount = factory.mount(factory.store(STORE_SIZE), "cache_memory=256M")
    path = mount.path / ("model.safetensors" if kind == "safetensors" else "model.pt")
    tensors = save(path)
    with without_huge_pages():
        huge = meminfo("ShmemHugePages")
        assert equal(LOADS[kind](path), tensors)
        before = info(mount.path)
        again = LOADS[kind](path)
        after = info(mount.path)
        assert equal(again, tensors) and meminfo("ShmemHugePages") == huge
        assert before["statistics"]["device_read_bytes"] == after["statistics"]["device_read_bytes"]
        assert after["hot"]["mapped"] >= before["hot"]["mapped"] + SIZE


# Reads a file with holes, of which each page takes memory.
READER = """
import mmap, sys
with open(sys.argv[1], "rb") as file:
    mapped = mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ)
while True:
    for at in range(0, len(mapped), mmap.PAGESIZE):
        mapped[at]
"""


@needs.root
@pytest.mark.alone
@pytest.mark.skipif(not os.path.exists("/proc/pressure/memory"), reason="the kernel does not count memory pressure")
def test_memory_that_nobody_maps_goes_to_programs_that_wait_for_it(control_group, factory, local):
    """The mount and four programs that read share a limit of memory, of which hot files take a part."""
    group, limit = control_group
    mount = factory.mount(factory.store(STORE_SIZE), "cache_memory=256M")
    (group / "cgroup.procs").write_text(str(mount.pid))   # its hot memory counts there
    paths = [mount.path / f"{number}.safetensors" for number in range(4)]
    saved = [save(path, number) for number, path in enumerate(paths)]
    kept = weightfs.safetensors.load_file(paths[0])
    for path in paths[1:]:
        weightfs.safetensors.load_file(path)
    assert hot(mount.path)["used"] >= 4 * SIZE
    (group / limit).write_text(str(4 * SIZE + (96 << 20)))
    with open(local / "holes", "wb") as holes:
        holes.truncate(512 << 20)
    with process.Processes() as readers:
        for _ in range(4):
            reader = readers.start([sys.executable, "-c", READER, local / "holes"])
            (group / "cgroup.procs").write_text(str(reader.pid))
        assert wait_until(lambda: hot(mount.path)["used"] < 2 * SIZE)
        assert equal(kept, saved[0])
        assert equal(weightfs.safetensors.load_file(paths[3]), saved[3])
    found = hot(mount.path)
    assert found["evictions"] >= 3 and found["used"] >= SIZE
    for _ in range(2):
        for path, tensors in zip(paths, saved):
            assert equal(weightfs.safetensors.load_file(path), tensors)
    assert equal(kept, saved[0])
