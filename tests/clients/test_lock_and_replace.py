# SPDX-License-Identifier: Apache-2.0
"""The system calls of orbax and tensorstore's file driver, without either library: lock files with
open-file-description locks, a check of the inode after locking, fsync, rename over the target, fsync of the directory.
"""

import errno
import fcntl
import os
import struct

from harness.users import call_as

F_OFD_SETLK, F_OFD_SETLKW = 37, 38
WHOLE_FILE = struct.pack("hhqqixxxx", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
UNLOCK = struct.pack("hhqqixxxx", fcntl.F_UNLCK, os.SEEK_SET, 0, 0, 0)


def lock(path):
    """Takes an open-file-description lock on a lock file, and checks that the file still has that name."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        fcntl.fcntl(descriptor, F_OFD_SETLKW, WHOLE_FILE)
        try:
            named, held = os.stat(path), os.fstat(descriptor)
            if (named.st_dev, named.st_ino) == (held.st_dev, held.st_ino):
                return descriptor
        except FileNotFoundError:
            pass
        os.close(descriptor)


def replace(path, data):
    """Writes one key."""
    lock_path = f"{path}.__lock"
    descriptor = lock(lock_path)
    try:
        os.ftruncate(descriptor, 0)
        os.write(descriptor, data)
        os.fsync(descriptor)
        os.rename(lock_path, path)
        sync_directory(os.path.dirname(path))
    finally:
        os.close(descriptor)


def sync_directory(path):
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(descriptor)
    os.fdatasync(descriptor)
    os.close(descriptor)


def test_keys_replaced_under_locks(mount, work):
    for version in range(5):
        for key in range(10):
            replace(work / f"c.{key}", bytes([version]) * (key * 1000 + version))
    mount.remount()
    assert sorted(os.listdir(work)) == [f"c.{key}" for key in range(10)]
    for key in range(10):
        assert (work / f"c.{key}").read_bytes() == bytes([4]) * (key * 1000 + 4)


def count_up(path, times):
    for _ in range(times):
        descriptor = lock(f"{path}.lock")
        try:
            value = int(open(path).read() or "0")
            with open(f"{path}.new", "w") as stream:
                stream.write(str(value + 1))
                stream.flush()
                os.fsync(stream.fileno())
            os.rename(f"{path}.new", path)
            os.unlink(f"{path}.lock")
        finally:
            os.close(descriptor)


def test_processes_that_lock_by_turns_lose_no_update(mount, work):
    path, children = work / "counter", []
    path.write_text("0")
    for _ in range(4):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                count_up(str(path), 50)
                status = 0
            finally:
                os._exit(status)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
    mount.remount()
    assert path.read_text() == "200"


def errno_of_ofd_lock(path):
    descriptor = os.open(path, os.O_RDWR)
    try:
        fcntl.fcntl(descriptor, F_OFD_SETLK, WHOLE_FILE)
        return 0
    except OSError as error:
        return error.errno
    finally:
        os.close(descriptor)


def test_ofd_locks_belong_to_the_open_file(work):
    """Two opens in one process are independent. A lock ends with the last copy of its descriptor."""
    path = str(work / "lock")
    first = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    fcntl.fcntl(first, F_OFD_SETLK, WHOLE_FILE)
    assert errno_of_ofd_lock(path) == errno.EAGAIN
    assert call_as(None, errno_of_ofd_lock, path) == errno.EAGAIN
    copy = os.dup(first)
    os.close(first)
    assert errno_of_ofd_lock(path) == errno.EAGAIN
    fcntl.fcntl(copy, F_OFD_SETLK, UNLOCK)
    assert errno_of_ofd_lock(path) == 0
    fcntl.fcntl(copy, F_OFD_SETLK, WHOLE_FILE)
    os.close(copy)
    assert call_as(None, errno_of_ofd_lock, path) == 0


def errno_of_range_lock(path, start, length, kind):
    with open(path, "r+b") as stream:
        try:
            fcntl.lockf(stream, kind | fcntl.LOCK_NB, length, start)
            return 0
        except OSError as error:
            return error.errno


def test_posix_locks_of_ranges(work):
    path = work / "ranges"
    path.write_bytes(bytes(1000))
    with open(path, "r+b") as stream:
        fcntl.lockf(stream, fcntl.LOCK_EX, 100, 100)
        fcntl.lockf(stream, fcntl.LOCK_SH, 100, 500)
        for start, length, kind, expected in ((0, 100, fcntl.LOCK_EX, 0), (150, 10, fcntl.LOCK_SH, errno.EAGAIN),
                                              (550, 10, fcntl.LOCK_SH, 0), (550, 10, fcntl.LOCK_EX, errno.EAGAIN),
                                              (0, 0, fcntl.LOCK_EX, errno.EAGAIN), (600, 0, fcntl.LOCK_EX, 0)):
            assert call_as(None, errno_of_range_lock, path, start, length, kind) == expected, (start, length)
        # when a process closes any descriptor of the file, its POSIX locks are released
        os.close(os.open(path, os.O_RDONLY))
        assert call_as(None, errno_of_range_lock, path, 0, 0, fcntl.LOCK_EX) == 0


def test_inode_numbers_are_stable(mount, work):
    names = [f"file-{index}" for index in range(50)]
    for name in names:
        (work / name).write_text(name)
    (work / "sub").mkdir()
    before = {name: os.stat(work / name).st_ino for name in [*names, "sub"]}
    assert len(set(before.values())) == len(before)
    mount.remount()
    assert {name: os.stat(work / name).st_ino for name in before} == before
    assert {entry.name: entry.inode() for entry in os.scandir(work)} == before
