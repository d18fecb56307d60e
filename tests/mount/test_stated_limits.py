# SPDX-License-Identifier: Apache-2.0
"""Limits that docs/GUARANTEES.md and docs/DIRECT.md state, where no other test meets them: an operation that is not
supported fails with the stated error, and changes nothing."""

import errno
import fcntl
import os
import stat

import pytest

from harness import needs, process
from harness.syscalls import FALLOC_COLLAPSE, FALLOC_INSERT, FICLONE, errno_of, fallocate
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
    assert (caught.value.errno, caught.value.offset) == (errno.EIO, 2 * BLOCK)


@needs.root
@pytest.mark.parametrize("mode, left", [(0o2664, stat.S_ISGID), (0o2775, 0)], ids=["not executable", "executable"])
def test_a_write_leaves_the_set_group_id_bit_of_a_file_that_the_group_may_not_execute(work, mode, left):
    path, _ = written(work / "file")
    os.chown(path, NOBODY, OTHER)
    path.chmod(mode)
    call_as(NOBODY, path.write_bytes, b"of a user outside the group")
    assert path.stat().st_mode & stat.S_ISGID == left
