# SPDX-License-Identifier: Apache-2.0
"""Memory that holds one serialized state while it is written to a file."""

import ctypes
import io
import mmap

import torch

import weightfs.torch
from weightfs._memory import describe

_HUGE_PAGE = 2 << 20
_LARGE = 1 << 20   # from this size on, torch's threads copy the data together


class Snapshot:
    """The bytes of torch.save in anonymous memory, which grows to the largest state and is reused by the next one.

    torch.save copies each storage once, and pickles everything else; so shared storages and views stay shared. The
    archive has no CRC-32, which no version of torch.load compares and which takes longer than the copy. Externally
    synchronized."""

    def __init__(self, max_memory):
        """max_memory: the largest size of a state in bytes, or None."""
        self._memory, self._end, self._max_memory = None, 0, max_memory

    def take(self, state):
        """Replaces the content with that of `state`. Raises MemoryError if it does not fit, and the errors of
        torch.save."""
        self._end = 0
        stream = _Stream(self._append)
        try:
            weightfs.torch.save(state, stream, crc32=False)
        except RuntimeError:
            if stream.error is not None:   # torch raises another exception when a stream fails
                raise stream.error from None
            raise
        finally:
            stream.append = None

    def view(self):
        """A memoryview of the content. It must be released before the next take()."""
        return memoryview(self._memory)[:self._end]

    def free(self):
        """Frees the memory."""
        memory, self._memory = self._memory, None
        if memory is not None:
            memory.close()

    def _append(self, data):
        end = self._end + data.nbytes
        if self._max_memory is not None and end > self._max_memory:
            raise MemoryError(f"a snapshot of the state needs more than max_memory={self._max_memory} bytes: "
                              "pass a larger max_memory, or save a smaller state")
        self._reserve(end)
        if data.nbytes >= _LARGE:
            target = torch.frombuffer(self._memory, dtype=torch.uint8, count=data.nbytes, offset=self._end)
            # torch warns about a read-only buffer, so it gets the address.
            source = (ctypes.c_byte * data.nbytes).from_address(describe(data).address)
            target.copy_(torch.frombuffer(source, dtype=torch.uint8))
        else:
            self._memory[self._end:end] = data
        self._end = end

    def _reserve(self, size):
        """Only the pages that are written take memory, so the mapping may be larger than the content."""
        present = 0 if self._memory is None else len(self._memory)
        if size <= present:
            return
        size = -(-max(size, present * 3 // 2) // _HUGE_PAGE) * _HUGE_PAGE
        if self._memory is None:
            self._memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        else:
            self._memory.resize(size)   # moves page tables, not bytes
        if hasattr(mmap, "MADV_HUGEPAGE"):
            self._memory.madvise(mmap.MADV_HUGEPAGE)


class _Stream(io.RawIOBase):
    """Passes data to `append` until that is None. torch's writer outlives a failed save as long as the traceback does,
    and writes the end of its archive when it is deleted: that must not reach the next snapshot."""

    def __init__(self, append):
        super().__init__()
        self.append, self.error = append, None

    def writable(self):
        return True

    def write(self, data):
        view = memoryview(data).cast("B")
        if self.append is not None:
            try:
                self.append(view)
            except BaseException as error:   # includes exceptions of signal handlers
                self.error = error
                raise
        return view.nbytes
