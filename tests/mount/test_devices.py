# SPDX-License-Identifier: Apache-2.0
"""The devices of a store: what `info` says of them, several of them, and stores that vanish under a mount.

Whatever happens to the store, commands end: each has a time limit here."""

import errno
import fcntl
import json
import os
import shutil
import struct

import pytest

import store_files
from harness import needs, process
from harness.filesystems import errors_of, is_mounted, weightfs
from harness.namespaces import unmount
from harness.syscalls import errno_of
from harness.users import call_as
from store_files import data_of, devices_of, extents_of

pytestmark = pytest.mark.usefixtures("weightfs_only")

MIB = 1 << 20
FS_IOC_SHUTDOWN = 0x8004587D
SHUTDOWN_NO_LOG = 2


@pytest.fixture
def mount(factory):
    return factory.mount(factory.store("128M"))


def check_devices_hold(store, data, extents):
    """Asserts that the devices contain all of a file's data at the locations that `info` shows."""
    assert sum(extent["length"] for extent in extents) >= len(data)
    for extent in extents:
        size = min(extent["length"], len(data) - extent["logical"])
        held = store_files.read_at(devices_of(store)[extent["device"]], extent["physical"], size)
        assert held == data[extent["logical"]:extent["logical"] + size]


def test_info_tells_where_a_file_lies_and_describes_mount_and_store(mount):
    data, path = data_of(1, 5 * MIB), mount.path / "file"
    with open(path, "wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
    check_devices_hold(mount.store, data, extents_of(path))
    for place in (path, mount.path, mount.store.directory):
        assert weightfs("info", place).out.strip()
        assert json.loads(weightfs("info", "--json", place).out)
    mount.fsck()


def test_info_commits_nothing(factory):
    """`info` must not write an incomplete replacement of a file to the device."""
    mount = factory.mount(factory.store("128M"), "commit=3600")
    path = mount.path / "file"
    path.write_bytes(b"new" * MIB)
    commits = json.loads(weightfs("info", "--json", mount.path).out)["statistics"]["commits"]
    info = json.loads(weightfs("info", "--json", path).out)
    assert info["mapped_bytes"] + info["pending_bytes"] == 3 * MIB and info["pending_bytes"] > 0
    assert "not yet written (fsync writes it)" in weightfs("info", path).out
    assert json.loads(weightfs("info", "--json", mount.path).out)["statistics"]["commits"] == commits
    with open(path, "rb") as stream:
        os.fsync(stream.fileno())
    info = json.loads(weightfs("info", "--json", path).out)
    assert info["mapped_bytes"] == 3 * MIB and info["pending_bytes"] == 0
    assert "not yet written" not in weightfs("info", path).out
    mount.fsck()


def check_data_on_both(mount):
    data = data_of(7, 40 * MIB + 17)
    (mount.path / "file").write_bytes(data)
    extents = extents_of(mount.path / "file")
    assert {extent["device"] for extent in extents} == {0, 1}
    mount.remount()
    assert (mount.path / "file").read_bytes() == data
    total = os.statvfs(mount.path).f_blocks * 4096
    assert total == 2 * (64 * MIB - 2 * MIB)
    mount.umount()
    check_devices_hold(mount.store, data, extents)
    mount.fsck()


def two_files(directory):
    paths = [directory / "first", directory / "second"]
    for path in paths:
        with open(path, "wb") as stream:
            stream.truncate(64 * MIB)
    return paths


def test_two_files_as_devices(factory, local):
    check_data_on_both(factory.mount(factory.store(devices=two_files(local))))


@needs.loop_devices()
def test_two_block_devices(factory, local):
    loops = []
    try:
        for path in two_files(local):
            loops.append(process.run(["losetup", "--find", "--show", path]).out.strip())
        mount = factory.mount(factory.store(devices=loops))
        finished = weightfs("format", local / "other", "--device", loops[0], "--force", codes=(1,))
        assert loops[0] in finished.err
        check_data_on_both(mount)
    finally:
        for loop in loops:
            process.run(["losetup", "-d", loop])


# A store that vanishes. The system calls run in a child, so that a hanging call is a failure and does not stop the
# tests.
def answer_of(function, *arguments):
    return errno_of(call_as, None, function, *arguments, limit=60)


def read_all(path):
    with open(path, "rb", buffering=0) as stream:
        while stream.read(MIB):
            pass


def write_and_sync(path):
    with open(path, "wb", buffering=0) as stream:
        for number in range(8):
            stream.write(data_of(number, MIB))
        os.fsync(stream.fileno())


def end_by_umount(mount):
    """Asserts that umount ends, with any result, and that the daemon ends too."""
    pid = mount.pid
    finished = weightfs("umount", mount.path, codes=None, limit=90)
    assert not is_mounted(mount.path), finished
    assert process.wait_gone(pid)
    mount.watchdog.forget(mount.path)
    return finished


@needs.loop_devices()
@needs.program("mkfs.ext4")
def test_a_store_whose_disk_dies_gives_errors_and_no_hang(factory, local):
    image, disk = local / "image", local / "disk"
    disk.mkdir()
    with open(image, "wb") as stream:
        stream.truncate(300 * MIB)
    process.run(["mkfs.ext4", "-q", image])
    process.run(["mount", "-o", "loop", image, disk])
    try:
        store = factory.store("64M")
        shutil.move(store.directory, disk / "store")
        store.directory = disk / "store"
        mount = factory.mount(store, "memory=112M")
        write_and_sync(mount.path / "file")
        mount.remount()
        descriptor = os.open(disk, os.O_RDONLY)
        fcntl.ioctl(descriptor, FS_IOC_SHUTDOWN, struct.pack("I", SHUTDOWN_NO_LOG))
        os.close(descriptor)
        assert answer_of(read_all, mount.path / "file") == errno.EIO
        assert answer_of(write_and_sync, mount.path / "new") in (errno.EIO, errno.EROFS)
        # The error persists: it is not reported once and then forgotten.
        assert answer_of(write_and_sync, mount.path / "new") in (errno.EIO, errno.EROFS)
        assert answer_of(os.mkdir, mount.path / "folder") in (errno.EIO, errno.EROFS)
        finished = end_by_umount(mount)
        assert finished.code != 0 and len(errors_of(finished)) == 1, finished
    finally:
        factory.close()
        unmount(disk)


def test_a_pool_that_was_cut_off_gives_errors_and_no_hang(factory):
    mount = factory.mount(factory.store("64M"), "memory=112M")
    write_and_sync(mount.path / "file")
    mount.remount()
    os.truncate(mount.store.directory / "pool", 4 * MIB)
    assert answer_of(read_all, mount.path / "file") == errno.EIO
    end_by_umount(mount)


def test_a_store_that_was_deleted_does_not_hang(mount):
    write_and_sync(mount.path / "file")
    shutil.rmtree(mount.store.directory)
    for function in (read_all, write_and_sync):
        assert answer_of(function, mount.path / "file") in (0, errno.EIO, errno.EROFS)
    answer_of(os.listdir, mount.path)
    end_by_umount(mount)
    assert not mount.store.directory.exists(), "the store came back from the dead"
