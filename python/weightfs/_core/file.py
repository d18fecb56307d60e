# SPDX-License-Identifier: Apache-2.0
"""File objects for programs that take one: torch.save and torch.load, pickle, numpy."""

from __future__ import annotations

import io
import os
import stat
from typing import BinaryIO

from weightfs._core.files import check_mounted
from weightfs._core.handle import Handle, chosen, the_handle
from weightfs._core.memory import advise_huge_pages
from weightfs._core.opened import closes_at_exit
from weightfs._core.streams import errors_of, name_of
from weightfs._core.types import Direct, Path

_DIRECT = 1 << 20         # bytes; smaller transfers go through the mount
_READ_BUFFER = 64 << 10   # a seek discards it
_WRITE_BUFFER = 4 << 20   # it is written directly


class File(io.FileIO):
    """An unbuffered file. Large reads and writes of regular files go directly between the caller's memory and the
    device; all others, those at the end of a file that is open for appending, and those while the interpreter exits,
    are those of io.FileIO."""

    def __init__(self, path, mode, used):
        super().__init__(os.fsdecode(path), mode)
        self._used, self._opened_as = used, name_of(self.fileno())
        self._regular = stat.S_ISREG(os.fstat(self.fileno()).st_mode)
        self._writes = self._regular and self.writable() and "a" not in mode

    def readinto(self, buffer):
        view = memoryview(buffer)
        if view.nbytes >= _DIRECT and self._regular and self.readable() and closes_at_exit():
            at = self.tell()
            wanted = min(view.nbytes, os.fstat(self.fileno()).st_size - at)
            if wanted >= _DIRECT:
                advise_huge_pages(view)
                with errors_of(self.name, self._opened_as), the_handle(self._used) as handle:
                    return self._moved(at, handle.read_into(view.cast("B")[:wanted], self._opened_as, at))
        return super().readinto(buffer)

    read = io.RawIOBase.read   # by readinto() and readall()

    def readall(self):
        memory = bytearray(max(0, os.fstat(self.fileno()).st_size - self.tell()) if self.seekable() else 0)
        del memory[self.readinto(memory):]
        return bytes(memory) + super().readall()

    def write(self, data):
        view = memoryview(data)
        if view.nbytes < _DIRECT or not self._writes or not closes_at_exit():
            return super().write(data)
        at = self.tell()
        with errors_of(self.name, self._opened_as), the_handle(self._used) as handle:
            return self._moved(at, handle.write_from(view.cast("B"), self._opened_as, at))

    def _moved(self, at, nbytes):
        self.seek(at + nbytes)
        return nbytes


def open(file: Path, mode: str = "rb", *, handle: Handle | None = None, direct: Direct = "auto") -> BinaryIO:
    """Opens a file as the built-in open() does in binary mode, and returns an io.BufferedReader, BufferedWriter or
    BufferedRandom. Its large reads and writes go directly between memory and the device; `raw` is the unbuffered file.
    The file is written in place: weightfs.torch.save replaces it atomically.

    Args:
        file: a path.
        mode: "rb", "wb", "xb" or "ab", also with "+".
        handle, direct: as in weightfs.torch.save.

    Raises:
        ValueError: the mode is none of these.
        OSError: the file cannot be opened, read or written."""
    if "b" not in mode or "t" in mode:
        raise ValueError(f"mode is {mode!r}: files are opened in binary modes, such as 'rb' and 'r+b'")
    used = chosen(handle, direct)
    check_mounted(file, used)
    raw = File(file, mode, used)
    try:
        if "+" in mode:
            return io.BufferedRandom(raw, _READ_BUFFER if "r" in mode else _WRITE_BUFFER)
        return io.BufferedReader(raw, _READ_BUFFER) if raw.readable() else io.BufferedWriter(raw, _WRITE_BUFFER)
    except BaseException:
        raw.close()
        raise
