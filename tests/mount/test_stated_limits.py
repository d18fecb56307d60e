# SPDX-License-Identifier: Apache-2.0
"""Limits that docs/GUARANTEES.md and docs/DIRECT.md state, where no other test meets them: an operation that is not
supported fails with the stated error, and changes nothing."""

import errno
import fcntl
import json
import os
import stat
from pathlib import Path

import pytest

from harness import needs, process
from harness.filesystems import is_mounted, weightfs
from harness.syscalls import (FALLOC_COLLAPSE, FALLOC_INSERT, FICLONE, errno_of, fallocate, file_handle, open_handle)
from harness.users import NOBODY, OTHER, call_as
from lease_checks import refusal
from lease_client import read_direct
from store_files import extents_of, flip

MOUNT_OPTIONS = "allow_other,dev,suid"
pytestmark = pytest.mark.usefixtures("weightfs_only")
BLOCK, MIB = 4096, 1 << 20


def written(path, data=b"content" * 4096):
    path.write_bytes(data)
    return path, data


@pytest.mark.parametrize("mode", [FALLOC_COLLAPSE, FALLOC_INSERT])
def test_ranges_are_not_collapsed_or_inserted(work, mode):
    path, data = written(work / "file")
    with open(path, "r+b") as stream:
        assert errno_of(fallocate, stream.fileno(), mode, BLOCK, BLOCK) == errno.EOPNOTSUPP
    assert path.read_bytes() == data


def test_reflinks_fail(work):
    path, data = written(work / "file")
    with open(path, "rb") as source, open(work / "copy", "wb") as target:
        assert errno_of(fcntl.ioctl, target.fileno(), FICLONE, source.fileno()) == errno.EOPNOTSUPP
    assert (work / "copy").read_bytes() == b"" and path.read_bytes() == data


@needs.program("chattr")
def test_flags_cannot_be_set(work):
    path, _ = written(work / "file")
    for flag in ("+i", "+a"):
        assert "Operation not supported" in process.run(["chattr", flag, path], codes=(1,)).err
    path.write_bytes(b"changed")


def test_reads_leave_access_times_alone(mount, work):
    path, data = written(work / "file")
    created = path.stat().st_atime_ns
    assert created > 0
    path.write_bytes(data)   # a later modification, after which relatime would set the access time
    assert path.read_bytes() == data
    mount.remount()
    assert path.read_bytes() == data and path.stat().st_atime_ns == created
    os.utime(path, ns=(5, 7))
    mount.remount()
    assert path.read_bytes() == data and path.stat().st_atime_ns == 5


@needs.root
def test_a_file_handle_is_stale_once_the_kernel_has_dropped_its_inode(mount, work):
    path, _ = written(work / "file")
    handle = file_handle(path)
    os.close(open_handle(mount.path, handle))
    mount.remount()
    assert errno_of(open_handle, mount.path, handle) == errno.ESTALE
    path.read_bytes()


@needs.root
def test_a_mount_is_no_upper_directory_of_overlayfs(work, local):
    if "overlay" not in Path("/proc/filesystems").read_text(encoding="utf-8").split():
        pytest.skip("needs overlayfs: the kernel has none")
    for name in ("upper", "work"):
        (work / name).mkdir()
    for name in ("lower", "merged"):
        (local / name).mkdir()
    options = f"lowerdir={local}/lower,upperdir={work}/upper,workdir={work}/work"
    assert process.run(["mount", "-t", "overlay", "overlay", "-o", options, local / "merged"], codes=None).code != 0
    assert not is_mounted(local / "merged")


def settled_requests(mount):
    """The numbers that `info` shows again and again, until it adds only its own requests: FORGET and RELEASE have no
    answer, and the others are counted after theirs."""
    def count():
        return json.loads(weightfs("info", "--json", mount.path).out)["statistics"]["requests"]

    counts = [count() for _ in range(3)]
    while counts[-1] - counts[-2] != counts[-2] - counts[-3]:
        counts.append(count())
    return counts


def requests_of(mount, change):
    """The number of requests that `change` causes."""
    before = settled_requests(mount)
    change()
    after = settled_requests(mount)
    of_info = min(before[-1] - before[-2], after[-1] - after[-2])
    return after[-1] - before[-1] - len(after) * of_info


def test_deleting_a_file_takes_at_most_four_requests(mount, work):
    files = [written(work / str(number), b"x")[0] for number in range(100)]
    assert len(files) <= requests_of(mount, lambda: [path.unlink() for path in files]) <= 3 * len(files) + 10
    files = [written(work / str(number), b"x")[0] for number in range(100)]
    mount.remount()
    assert len(files) <= requests_of(mount, lambda: [path.unlink() for path in files]) <= 4 * len(files) + 20


def test_the_first_stat_after_a_write_is_a_request_and_the_next_one_is_none(mount, work):
    files = [written(work / str(number), b"x")[0] for number in range(100)]
    work.stat()
    for _ in range(2):
        assert len(files) <= requests_of(mount, lambda: [path.stat() for path in files]) < len(files) + 20
        assert requests_of(mount, lambda: [path.stat() for path in files]) < 20
        for path in files:
            with open(path, "r+b", buffering=0) as stream:
                stream.write(b"y")


@pytest.mark.parametrize("count, code", [(64, 0), (65, errno.EOPNOTSUPP)])
def test_a_store_of_more_than_64_devices_has_no_leases(factory, count, code):
    devices = [factory.directory("devices") / str(number) for number in range(count)]
    for device in devices:
        with open(device, "wb") as stream:
            stream.truncate(16 * MIB)
    mount = factory.mount(factory.store(devices=devices))
    path, data = written(mount.path / "file")
    if code:
        assert refusal(read_direct, path) == code
    else:
        assert read_direct(path) == data
    assert path.read_bytes() == data


def test_leases_verify_reads_of_a_mount_without_verification(factory):
    mount = factory.mount(factory.store("64M"))
    path, data = written(mount.path / "file")
    place = extents_of(path)[0]["physical"] + 2 * BLOCK
    mount.umount()
    flip(mount.store.directory / "pool", place)
    mount.mount("noverify")
    assert path.read_bytes() != data
    module = pytest.importorskip("weightfs", reason="the Python package is not installed: pip install . in the root")
    with module.aio_handle(direct="require") as handle, pytest.raises(OSError) as caught:
        handle.read_into(bytearray(len(data)), path)
    with module.aio_handle() as handle, open(path, "rb") as file:
        assert handle.map(file.fileno(), 0, len(data)) is None
    assert (caught.value.errno, caught.value.offset) == (errno.EIO, 2 * BLOCK)


@needs.root
@pytest.mark.parametrize("mode, left", [(0o2664, stat.S_ISGID), (0o2775, 0)], ids=["not executable", "executable"])
def test_a_write_leaves_the_set_group_id_bit_of_a_file_that_the_group_may_not_execute(work, mode, left):
    path, _ = written(work / "file")
    os.chown(path, NOBODY, OTHER)
    path.chmod(mode)
    call_as(NOBODY, path.write_bytes, b"of a user outside the group")
    assert path.stat().st_mode & stat.S_ISGID == left
