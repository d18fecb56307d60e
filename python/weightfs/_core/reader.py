# SPDX-License-Identifier: Apache-2.0
"""Many small reads of one file."""

from __future__ import annotations

import array
import contextlib
import errno
import functools
import itertools
import math
import os
from typing import Any

from weightfs import _native
from weightfs._core import process
from weightfs._core.arguments import file_name, labelled, to_keep, whole
from weightfs._core.future import Future, Pending
from weightfs._core.memory import describe
from weightfs._core.opened import Opened
from weightfs._core.types import Direct, File

_MOST_QUEUE_DEPTH, _MOST_MEMORY, _MOST_FILE_BYTES = 1 << 16, 1 << 40, (1 << 63) - 1


class reader(Opened):  # noqa: N801  (like open)
    """An open file for small reads at random offsets: rows of an embedding table, pages of a key-value cache, entries
    of an index.

    On a weightfs mount the reader holds a lease of the file, with the checksums of its blocks. A read then makes no
    request to the mount: it transfers whole blocks of 4 KiB from the devices and verifies each of them. All reads
    return one state of the file, that of the opening or of the last refresh(), whatever other programs write, truncate,
    rename over it or delete. On other filesystems, and without a lease, a read sees the file as pread(2) does.

    Any thread may use a reader. A forked child opens the file again when it first uses the reader, and pickling a
    reader of a path opens the path again: so a Dataset may have a reader, and each worker of a DataLoader sees the file
    as of its own opening."""

    _KIND, _CREATE = "reader", "open"

    def __init__(self, file: File, *, direct: Direct = "auto", queue_depth: int = 64, memory: int = 64 << 20) -> None:
        """Opens the file and takes the first lease.

        Args:
            file: a path or an open descriptor. The caller keeps the descriptor, and may close it at once.
            direct: "auto" reads the file itself if there is no lease, "never" always does, "require" fails instead.
            queue_depth: maximum number of transfers in the kernel.
            memory: maximum bytes of the checksums that are kept: 4 for each 4 KiB of the file, so the default suffices
                for 64 GiB. A larger file is leased in windows. Once it has been changed, a read that needs another
                window fails with ESTALE.

        Raises:
            OSError: the file cannot be opened, or with "require" not leased."""
        self._arguments = (whole("queue_depth", queue_depth, 1, _MOST_QUEUE_DEPTH),
                           whole("memory", memory, 1, _MOST_MEMORY), direct)
        super().__init__(_native.Reader(file_name(file), *self._arguments))
        self._file = to_keep(file)   # for a forked child, where the caller's descriptor may be closed

    def read(self, offsets: Any, out: Any) -> int:
        """Reads bytes of the file into `out`.

        Args:
            offsets: one offset in bytes, or a sequence, an array or a CPU tensor of them, in any order.
            out: a writable CPU tensor, array or buffer. With one offset it is one row. With several, each fills an
                equal part: out[i], if `out` has more than one dimension. The bytes of a row are contiguous.

        Returns:
            The number of bytes.

        Raises:
            OSError: ENODATA for an offset from which the file has too few bytes. EIO for a block that differs from its
                checksum, with the file and the offset of the block. EPIPE if the mount has ended. ESTALE: see `memory`.
            ValueError: `out` has another size or shape."""
        return self._read(offsets, out)

    def read_async(self, offsets: Any, out: Any) -> Future[int]:
        """Starts the same and returns its Future. The offsets may be changed after the call."""
        return self._start(offsets, out)

    def rows(self, indices: Any, out: Any, *, base: int = 0, row_bytes: int | None = None,
             count: int | None = None) -> int:
        """Reads rows of a row-major tensor in the file. Row i is at base + i * row_bytes.

        Args:
            indices: one index, or a sequence, an array or a CPU tensor of integers of any type. A negative one counts
                from the last row. Truth values, one for each row, select the rows that are true.
            out: as for read(). If a row of it is shorter than `row_bytes`, the first bytes of each row are read.
            base: the offset of the tensor in the file, in bytes.
            row_bytes: bytes from one row to the next in the file; None: the size of a row of `out`.
            count: how many rows the tensor has; None: as many as the file has from `base` on. Without a lease that is
                its size at the call, because the file may have grown.

        Returns:
            The number of bytes.

        Raises:
            IndexError: there is no such row, or there are more or fewer truth values than rows.
            OSError, ValueError: as read() does."""
        return self._read(indices, out, (base, row_bytes, count))

    def rows_async(self, indices: Any, out: Any, *, base: int = 0, row_bytes: int | None = None,
                   count: int | None = None) -> Future[int]:
        """Starts the same and returns its Future. The indices may be changed after the call."""
        return self._start(indices, out, (base, row_bytes, count))

    def refresh(self) -> None:
        """Opens the path again and takes new leases: later reads see the file as it is now, also if another file was
        renamed over it or the mount was restarted. A reader of a descriptor stays at its file.

        Raises:
            OSError: as the constructor does. The reader is then unchanged."""
        self._native.refresh()

    @property
    def size(self) -> int:
        """The size of the file in bytes, as of the opening or the last refresh()."""
        return self._native.size()

    @property
    def direct(self) -> bool:
        """True if reads bypass a weightfs mount by a lease."""
        return self._native.leased()

    @property
    def direct_reason(self) -> str:
        """Why there is no lease; empty with a lease and with direct="never"."""
        return self._native.no_lease()

    def close(self) -> None:
        super().close()
        self._file = None   # a copy of a descriptor would keep the mount busy

    def __reduce_ex__(self, protocol):
        if self._opened.closed():
            raise ValueError("the reader is closed")
        if hasattr(self._file, "__index__"):
            raise TypeError("a reader of a descriptor cannot be copied or pickled; open one by its path")
        queue_depth, memory, direct = self._arguments
        return (functools.partial(type(self), direct=direct, queue_depth=queue_depth, memory=memory),
                (os.fspath(self._file),))

    @property
    def _native(self):
        if self._process != process.pid and not self._opened.closed():
            with process.lock:
                if self._process != process.pid:
                    self._opened = _native.Reader(file_name(self._file), *self._arguments)
                    self._pending, self._process = Pending(), process.pid
        return self._opened

    def _read(self, numbers, out, table=None):
        native, memory = self._native, describe(out, writable=True)
        with _index_errors(table), labelled(memory):
            native.read(*self._native_arguments(numbers, memory, out, table), False)
        return memory.nbytes

    def _start(self, numbers, out, table=None):
        native, memory = self._native, describe(out, writable=True)
        arguments = self._native_arguments(numbers, memory, out, table)
        with _index_errors(table), labelled(memory):
            return self._pending.start(memory, lambda: native.read(*arguments, True))

    def _native_arguments(self, numbers, memory, out, table):
        """ValueError if the rows do not fill the memory. `table`: (base, row_bytes, count), or None for offsets."""
        if memory.on_device:
            raise ValueError(f"{memory.label} is in GPU memory: rows are read into host memory only")
        numbers, given, mask = _integers(numbers, table is not None)
        if given is None:
            given = 1
        elif len(memory.shape) > 1 and memory.shape[0] != given:
            raise ValueError(f"{memory.label} has {memory.shape[0]} rows for {given} offsets")
        if given == 0 and memory.nbytes > 0 or given > 0 and memory.nbytes % given != 0:
            raise ValueError(f"{memory.label} has {memory.nbytes} bytes, which {given} rows of equal size do not fill")
        length = memory.nbytes // given if given else _row_of(out)
        if table is None:
            return numbers, 0, 1, None, length, memory.arguments
        base, step, count = table
        base = whole("base", base, 0, _MOST_FILE_BYTES)
        step = length if step is None else whole("row_bytes", step, length, _MOST_FILE_BYTES)
        if count is not None:
            rows = whole("count", count, 0, _MOST_FILE_BYTES)
        else:
            rows = max(0, (self._native.present_size() - base - length) // step + 1) if step else _MOST_FILE_BYTES
        if mask is not None and mask != rows and (step or count is not None):
            raise IndexError(f"a mask of {mask} truth values cannot select from {rows} rows")
        bounds = rows, _MOST_FILE_BYTES if count is None else rows
        return numbers, base, step, bounds, length, memory.arguments


@contextlib.contextmanager
def _index_errors(table):
    """Raises IndexError for a row behind the end of the file."""
    try:
        yield
    except OSError as error:
        if table is None or error.errno != errno.ENODATA:
            raise
        raise IndexError(error.strerror) from None


def _row_of(out):
    """The bytes of a row of memory that has none; 0 if its shape does not say."""
    shape = getattr(out, "shape", ())
    return math.prod(shape[1:]) * out.itemsize if len(shape) > 1 else 0


def _integers(numbers, masks):
    """Returns (numbers for the native module, how many; None for a number alone, length of the mask or None). `masks`:
    truth values select rows by their positions."""
    if hasattr(numbers, "numpy") and getattr(numbers, "ndim", 0) > 0:   # a torch tensor
        numbers = numbers.numpy()
    dimensions = getattr(numbers, "ndim", None)
    is_mask = _are_truth_values(numbers)
    if is_mask and (not masks or dimensions == 0 or isinstance(numbers, bool)):
        raise TypeError("truth values are neither an offset nor the index of a row")
    if not dimensions and hasattr(numbers, "__index__"):
        return (numbers.__index__(),), None, None
    if dimensions not in (None, 1):
        raise ValueError(f"the numbers have {dimensions} dimensions: one is required")
    if not is_mask:
        return numbers, len(numbers), None
    chosen = array.array("q", itertools.compress(range(len(numbers)), numbers))
    return chosen, len(chosen), len(numbers)


def _are_truth_values(numbers):
    if isinstance(numbers, (list, tuple)):
        return len(numbers) > 0 and all(isinstance(one, bool) for one in numbers)
    return isinstance(numbers, bool) or str(getattr(numbers, "dtype", "")) in ("bool", "torch.bool")
