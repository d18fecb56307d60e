# SPDX-License-Identifier: Apache-2.0
"""The state of a step: its copy in memory while it is written, and how it is loaded into tensors that exist."""

import contextlib
import ctypes
import mmap

import torch

import weightfs.torch
from weightfs._core.memory import describe
from weightfs._core.streams import DirectReader, ErrorKeeping
from weightfs.torch._archive import fill, marked_as, outline, start_of

_HUGE_PAGE = 2 << 20
_WIPE_ON_FORK = 18   # MADV_WIPEONFORK of Linux, which the module mmap does not have
_LARGE = 1 << 20   # from this size on, torch's threads copy the data together
_SHOWN = 5   # the number of mismatches that an error lists


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
            with stream.raising_its_error():
                weightfs.torch.save(state, stream, crc32=False)
        finally:
            stream.append = None

    def view(self):
        """A memoryview of the content. It must be released before the next take()."""
        return memoryview(self._memory)[:self._end]

    def free(self):
        """Frees the memory."""
        memory, self._memory = self._memory, None
        if memory is not None:
            with contextlib.suppress(BufferError):   # after an interrupt, the thread that writes it frees it
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
        # A forked child, which cannot use the manager, would get a copy of each page that the next state overwrites.
        # Not MADV_DONTFORK: a child that deletes this object unmaps the range, where it may have other memory then.
        with contextlib.suppress(OSError):   # of a kernel that does not know it
            self._memory.madvise(_WIPE_ON_FORK)


class _Stream(ErrorKeeping):
    """Passes data to `append` until that is None. torch's writer outlives a failed save as long as the traceback does,
    and writes the end of its archive when it is deleted: that must not reach the next snapshot."""

    def __init__(self, append):
        super().__init__()
        self.append = append

    def writable(self):
        return True

    def write(self, data):
        view = memoryview(data).cast("B")
        if self.append is not None:
            with self.keeping_its_error():
                self.append(view)
        return view.nbytes


def load_into(state, path, handle):
    """Reads the file of a state into `state`, as Manager.restore describes."""
    with contextlib.closing(DirectReader(path, handle)) as stream, stream.raising_its_error():
        match = _Match()
        match.compare(state, outline(stream), "state", None)
        if match.problems:
            shown, more = match.problems[:_SHOWN], len(match.problems) - _SHOWN
            raise ValueError(f"{path} does not match the state, which is unchanged: "
                             f"{'; '.join(shown)}{f'; and {more} more' if more > 0 else ''}")
        for target, source in match.tensors:
            fill(target, source, stream)
        new = _New(stream)
        values = [(put, new.value(saved)) for put, saved in match.values]
        for put, value in values:
            put(value)


class _Match:
    """Compares a state with the outline of a saved one. Collects the tensors to fill as (target, source), the other
    values as (function that stores the value, saved value), and the differences as texts."""

    def __init__(self):
        self.problems, self.tensors, self.values = [], [], []

    def compare(self, wanted, saved, path, put):
        """put(value) replaces `wanted` in its container; None if the container cannot be changed."""
        if isinstance(wanted, torch.Tensor):
            self._compare_tensors(wanted, saved, path)
        elif isinstance(wanted, dict) and isinstance(saved, dict):
            self._compare_dicts(wanted, saved, path)
        elif type(wanted) in (list, tuple) and type(saved) is type(wanted) and len(saved) == len(wanted):
            for index, (one, other) in enumerate(zip(wanted, saved)):
                store = _setter(wanted, index) if isinstance(wanted, list) else None
                self.compare(one, other, f"{path}[{index}]", store)
        elif wanted is not None and (_has_parts(wanted) or _has_parts(saved)):
            self.problems.append(f"{path} is {_text(wanted)}, the file has {_text(saved)}")
        elif put is not None:
            self.values.append((put, saved))
        elif wanted is not saved and wanted != saved:
            self.problems.append(f"{path} is {wanted!r}, the file has {_text(saved)}, and a tuple cannot be changed")

    def _compare_tensors(self, wanted, saved, path):
        if wanted.is_meta:
            self.problems.append(f"{path} is on the meta device: give the module memory first, with to_empty()")
            return
        alike = _is_plain(wanted) and isinstance(saved, torch.Tensor) and wanted.layout == saved.layout
        if alike and wanted.shape == saved.shape and wanted.dtype == saved.dtype:
            self.tensors.append((wanted, saved))
        else:
            self.problems.append(f"{path} is {_text(wanted)}, the file has {_text(saved)}")

    def _compare_dicts(self, wanted, saved, path):
        for key in wanted:
            if key in saved:
                self.compare(wanted[key], saved[key], f"{path}[{key!r}]", _setter(wanted, key))
            else:
                self.problems.append(f"{path}[{key!r}] is missing in the file")
        self.problems += [f"{path}[{key!r}] is only in the file" for key in saved if key not in wanted]


class _New:
    """Makes values of an outline, with memory of their own. Tensors that share a storage in the file share it here, and
    a dict or list that occurs several times is one."""

    def __init__(self, stream):
        self._stream, self._storages, self._made = stream, {}, set()

    def value(self, saved):
        if isinstance(saved, torch.Tensor):
            return self._tensor(saved)
        if type(saved) is tuple:
            return tuple(map(self.value, saved))
        if isinstance(saved, (dict, list)) and id(saved) not in self._made:
            self._made.add(id(saved))   # the outline keeps it alive
            for key in saved if isinstance(saved, dict) else range(len(saved)):
                saved[key] = self.value(saved[key])   # in place, because a dict of torch may have attributes
        return saved

    def _tensor(self, saved):
        start, storage = start_of(saved), saved.untyped_storage()
        if start not in self._storages:
            source = torch.empty(0, dtype=torch.uint8, device="meta").set_(storage, 0, (storage.nbytes(),), (1,))
            fill(memory := torch.empty(storage.nbytes(), dtype=torch.uint8), source, self._stream)
            self._storages[start] = memory.untyped_storage()
        made = torch.empty(0, dtype=saved.dtype)
        made.set_(self._storages[start], saved.storage_offset(), saved.shape, saved.stride())
        made = marked_as(made, saved)
        if isinstance(saved, torch.nn.Parameter):
            return torch.nn.Parameter(made, saved.requires_grad)
        return made.requires_grad_(saved.requires_grad)


def _setter(container, key):
    return lambda value: container.__setitem__(key, value)


def _has_parts(value):
    return isinstance(value, (torch.Tensor, dict, list, tuple))


def _is_plain(tensor):
    """Others, such as DTensor, may have their elements elsewhere."""
    return type(tensor) in (torch.Tensor, torch.nn.Parameter)


def _text(value):
    if isinstance(value, torch.Tensor):
        kind = "tensor" if _is_plain(value) else type(value).__name__
        return f"a {kind} of shape {tuple(value.shape)} and {value.dtype}"
    if isinstance(value, (list, tuple)):
        return f"a {type(value).__name__} of {len(value)} values"
    return f"of type {type(value).__name__}"
