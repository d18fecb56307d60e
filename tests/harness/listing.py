# SPDX-License-Identifier: Apache-2.0
"""Directory streams and getdents64(2), which Python's os module hides."""

import ctypes
import errno
import os
import struct

_libc = ctypes.CDLL(None, use_errno=True)
_libc.opendir.restype = _libc.readdir.restype = ctypes.c_void_p
_libc.opendir.argtypes = [ctypes.c_char_p]
_libc.readdir.argtypes = _libc.closedir.argtypes = _libc.rewinddir.argtypes = [ctypes.c_void_p]
_libc.telldir.restype = ctypes.c_long
_libc.telldir.argtypes = [ctypes.c_void_p]
_libc.seekdir.argtypes = [ctypes.c_void_p, ctypes.c_long]
_libc.syscall.restype = ctypes.c_long

SYS_GETDENTS64 = {"x86_64": 217, "aarch64": 61}.get(os.uname().machine)
# struct linux_dirent64: inode, offset, size of the record, type, name.
_HEADER = struct.Struct("=QqHB")


def getdents(descriptor, size):
    """One call with a buffer of that size: (name, position after the entry) of each entry. Empty: the end."""
    buffer = ctypes.create_string_buffer(size)
    count = _libc.syscall(SYS_GETDENTS64, descriptor, buffer, ctypes.c_size_t(size))
    if count < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    records, entries, at = buffer.raw[:count], [], 0
    while at < count:
        _, offset, length, _ = _HEADER.unpack_from(records, at)
        entries.append((records[at + _HEADER.size:records.index(0, at + _HEADER.size)], offset))
        at += length
    return entries


class Directory:
    """A stream of opendir(3)."""

    def __init__(self, path):
        self._stream = _libc.opendir(os.fsencode(path))
        if not self._stream:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    def read(self):
        """The name of the next entry; None at the end."""
        ctypes.set_errno(0)
        address = _libc.readdir(self._stream)
        if not address:
            if ctypes.get_errno() not in (0, errno.EAGAIN):
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
            return None
        return ctypes.string_at(address + _HEADER.size)

    def tell(self):
        return _libc.telldir(self._stream)

    def seek(self, position):
        _libc.seekdir(self._stream, position)

    def rewind(self):
        _libc.rewinddir(self._stream)

    def close(self):
        _libc.closedir(self._stream)
