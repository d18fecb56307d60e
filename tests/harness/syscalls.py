# SPDX-License-Identifier: Apache-2.0
"""System calls that Python lacks, through the C library. All raise OSError as the functions of `os` do."""

import ctypes
import ctypes.util
import errno
import os

AT_FDCWD = -100
AT_SYMLINK_FOLLOW = 0x400
AT_EMPTY_PATH = 0x1000
RENAME_NOREPLACE, RENAME_EXCHANGE, RENAME_WHITEOUT = 1, 2, 4
FALLOC_KEEP_SIZE, FALLOC_PUNCH_HOLE, FALLOC_COLLAPSE, FALLOC_ZERO_RANGE, FALLOC_INSERT = 1, 2, 8, 16, 32
MNT_DETACH = 2
FICLONE = 0x40049409

_libc = ctypes.CDLL(None, use_errno=True)


def checked(name, *arguments):
    function = getattr(_libc, name)
    function.restype = ctypes.c_int
    result = function(*arguments)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def fallocate(descriptor, mode, offset, length):
    checked("fallocate", descriptor, mode, ctypes.c_int64(offset), ctypes.c_int64(length))


def rename_flags(source, target, flags):
    checked("renameat2", AT_FDCWD, os.fsencode(source), AT_FDCWD, os.fsencode(target), ctypes.c_uint(flags))


def link_following(source, target):
    """linkat with AT_SYMLINK_FOLLOW, which os.link omits."""
    checked("linkat", AT_FDCWD, os.fsencode(source), AT_FDCWD, os.fsencode(target), AT_SYMLINK_FOLLOW)


def link_descriptor(descriptor, target):
    """Gives an O_TMPFILE file a name, through /proc, as in open(2)."""
    link_following(f"/proc/self/fd/{descriptor}", target)


class _FileHandle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint), ("type", ctypes.c_int), ("handle", ctypes.c_ubyte * 128)]


def file_handle(path):
    """name_to_handle_at(2)"""
    handle, mount = _FileHandle(bytes=128), ctypes.c_int()
    checked("name_to_handle_at", AT_FDCWD, os.fsencode(path), ctypes.byref(handle), ctypes.byref(mount), 0)
    return handle


def open_handle(directory, handle):
    """open_by_handle_at(2), on the filesystem of `directory`, for reading."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        return checked("open_by_handle_at", descriptor, ctypes.byref(handle), os.O_RDONLY)
    finally:
        os.close(descriptor)


def sync_filesystem(descriptor):
    checked("syncfs", descriptor)


def unmount_lazily(directory):
    """MNT_DETACH; an error is returned, not raised, because there may be nothing left to unmount."""
    try:
        checked("umount2", os.fsencode(directory), MNT_DETACH)
    except OSError as error:
        return error.errno
    return 0


def mmap_address(mapping):
    return ctypes.addressof(ctypes.c_char.from_buffer(mapping))


def raw_open(path_bytes, flags, mode=0):
    """open(2) with a path that Python would reject."""
    return checked("open", path_bytes, flags, mode)


def errno_of(function, *arguments, **options):
    """Returns the errno that a call fails with, or 0 if it succeeds."""
    try:
        function(*arguments, **options)
        return 0
    except OSError as error:
        return error.errno


def errno_name(number):
    return errno.errorcode.get(number, str(number)) if number else "0"
