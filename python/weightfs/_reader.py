# SPDX-License-Identifier: Apache-2.0
"""Many small reads of one file."""

from weightfs import _native
from weightfs._arguments import labelled
from weightfs._future import Future
from weightfs._memory import describe
from weightfs._numbers import file_name, whole
from weightfs._opened import Opened

_MOST_QUEUE_DEPTH, _MOST_MEMORY, _MOST_FILE_BYTES = 1 << 16, 1 << 40, (1 << 63) - 1


class reader(Opened):  # noqa: N801  (like aio_handle)
    """An open file for small reads at random offsets: rows of an embedding table, pages of a key-value cache, entries
    of an index.

    On a weightfs mount the reader holds a lease of the file, with the checksums of its blocks. A read then makes no
    request to the mount: it transfers whole blocks of 4 KiB from the devices and verifies each of them. All reads
    return one state of the file, that of the opening or of the last refresh(), whatever other programs write, truncate,
    rename over it or delete. On other filesystems, and without a lease, a read sees the file as pread(2) does.

    Any thread may use a reader. A forked child must not use its parent's reader."""

    _KIND, _CREATE = "reader", "open"

    def __init__(self, file, *, direct="auto", queue_depth=64, memory=64 << 20):
        """Opens the file and takes the first lease.

        Args:
            file: a path or an open descriptor. The caller keeps the descriptor, and may close it at once.
            direct: "auto" reads the file itself if there is no lease, "never" always does, "require" fails instead.
            queue_depth: maximum number of transfers in the kernel.
            memory: maximum bytes of the checksums that are kept: 4 for each 4 KiB of the file, so the default suffices
                for 64 GiB. A larger file is leased in windows. Once it has been changed, a read that needs another
                window fails with ESTALE.

        Raises:
            OSError: the file cannot be opened, or with "require" not leased.
        """
        super().__init__(_native.Reader(file_name(file), whole("queue_depth", queue_depth, 1, _MOST_QUEUE_DEPTH),
                                        whole("memory", memory, 1, _MOST_MEMORY), direct))

    def read(self, offsets, out):
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
            ValueError: `out` has another size or shape.
        """
        return self._read(offsets, out, 0, 1)

    def read_async(self, offsets, out):
        """Starts the same and returns its Future. The offsets may be changed after the call."""
        return self._start(offsets, out, 0, 1)

    def rows(self, indices, out, *, base=0, row_bytes=None):
        """Reads rows of a row-major tensor in the file. Row i is at base + i * row_bytes.

        Args:
            indices: one index, or a sequence, an array or a CPU tensor of them.
            out: as for read(). If a row of it is shorter than `row_bytes`, the first bytes of each row are read.
            base: the offset of the tensor in the file, in bytes.
            row_bytes: bytes from one row to the next in the file; None: the size of a row of `out`.

        Returns:
            The number of bytes.

        Raises:
            OSError, ValueError: as read() does.
        """
        return self._read(indices, out, base, row_bytes, True)

    def rows_async(self, indices, out, *, base=0, row_bytes=None):
        """Starts the same and returns its Future. The indices may be changed after the call."""
        return self._start(indices, out, base, row_bytes, True)

    def refresh(self):
        """Opens the path again and takes new leases: later reads see the file as it is now, also if another file was
        renamed over it or the mount was restarted. A reader of a descriptor stays at its file.

        Raises:
            OSError: as the constructor does. The reader is then unchanged.
        """
        self._native.refresh()

    @property
    def size(self):
        """The size of the file in bytes, as of the opening or the last refresh()."""
        return self._native.size()

    @property
    def direct(self):
        """True if reads bypass a weightfs mount by a lease."""
        return self._native.leased()

    @property
    def direct_reason(self):
        """Why there is no lease; empty with a lease and with direct="never"."""
        return self._native.no_lease()

    def _read(self, numbers, out, base, step, is_rows=False):
        native, memory = self._native, describe(out, writable=True)
        arguments = _arguments(numbers, memory, base, step, is_rows)
        with labelled(memory):
            native.read(*arguments)
        return memory.nbytes

    def _start(self, numbers, out, base, step, is_rows=False):
        native, memory = self._native, describe(out, writable=True)
        arguments = _arguments(numbers, memory, base, step, is_rows)
        operation = self._pending.start(memory, None, True, lambda: native.start_read(*arguments))
        return Future(operation, memory, self._pending.forget_done)


def _arguments(numbers, memory, base, step, is_rows):
    """The arguments of the native module. ValueError if the rows do not fill the memory."""
    if memory.on_device:
        raise ValueError(f"{memory.label} is in GPU memory: rows are read into host memory only")
    if hasattr(numbers, "__index__") and getattr(numbers, "ndim", 0) == 0:
        numbers, count = (numbers.__index__(),), 1
    else:
        if hasattr(numbers, "numpy"):   # a torch tensor
            numbers = numbers.numpy()
        count = len(numbers)
        if len(memory.shape) > 1 and memory.shape[0] != count:
            raise ValueError(f"{memory.label} has {memory.shape[0]} rows for {count} offsets")
    if count == 0 and memory.nbytes > 0 or count > 0 and memory.nbytes % count != 0:
        raise ValueError(f"{memory.label} has {memory.nbytes} bytes, which {count} rows of equal size do not fill")
    length = memory.nbytes // count if count else 0
    if is_rows:
        base = whole("base", base, 0, _MOST_FILE_BYTES)
        step = length if step is None else whole("row_bytes", step, length, _MOST_FILE_BYTES)
    return numbers, base, step, length, memory.arguments
