# SPDX-License-Identifier: Apache-2.0
"""Lazy access to the tensors of files, as safetensors.safe_open has it."""

import contextlib
import math
import operator

import torch

from weightfs._memory import advise_huge_pages
from weightfs.safetensors._files import device_of, handle_for, open_all, view
from weightfs.safetensors._format import DTYPES, shape_in_file

_NEARBY = 4096                # bytes; rows of a slice with smaller gaps share blocks of the device
_MOST_SCRATCH = 64 << 20      # bytes that a slice reads beside its own at once
_MOST_RANGES = 1 << 16        # ranges of one operation
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}   # torch copies few of the smallest types


class SafeOpen:
    """The tensors of one or more files, each read when it is asked for. A context manager. Methods may be called by
    several threads at once, apart from close(). Tensors that were returned own their memory."""

    def __init__(self, files, framework="pt", device="cpu", *, handle=None):
        """See weightfs.safetensors.open."""
        if framework not in ("pt", "torch", "pytorch"):
            raise ValueError(f"framework is {framework!r}: this library makes tensors of torch alone (\"pt\")")
        self._device = device_of(device)
        with contextlib.ExitStack() as stack:
            self._shards, self._places = open_all(files, stack)
            self._handle = stack.enter_context(handle_for(handle, self._device))
            self._stack = stack.pop_all()

    def keys(self):
        """The names of all tensors, sorted."""
        return sorted(self._places)

    def offset_keys(self):
        """The names of all tensors in the order of the files and of the offsets in them."""
        return list(self._places)

    def metadata(self):
        """The metadata of all files in one dict of strings, or None if there are none. Of files that give one key
        several values, the first one counts."""
        found = [shard.metadata for shard in self._shards if shard.metadata is not None]
        return {key: value for metadata in reversed(found) for key, value in metadata.items()} if found else None

    def get_tensor(self, name):
        """Reads a tensor. KeyError if no file has it, OSError if it cannot be read."""
        shard = self._shard_of(name)
        facts = shard.tensors[name]
        memory = shard.read(self._handle, self._device, *facts["data_offsets"])
        return view(memory, facts, facts["data_offsets"][0])

    def get_slice(self, name):
        """A SafeSlice, which reads parts of a tensor. KeyError if no file has it."""
        shard = self._shard_of(name)
        return SafeSlice(name, shard, self._handle, self._device)

    def close(self):
        """Closes the files. Later reads raise ValueError."""
        self._stack.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _shard_of(self, name):
        if name not in self._places:
            raise KeyError(f"{', '.join(shard.path for shard in self._shards)}: there is no tensor {name!r}")
        return self._places[name]


class SafeSlice:
    """A tensor in a file, of which indexing reads parts: `part[10:20, :, 3]`. Indices are those of torch: numbers,
    slices with a positive step, and an ellipsis. An index reads the blocks of its elements alone (and gaps of a few
    blocks between them), in one operation: with a lease, in one lease."""

    def __init__(self, name, shard, handle, device):
        self._name, self._shard, self._handle, self._device = name, shard, handle, device
        self._facts = shard.tensors[name]
        self._dtype = DTYPES[self._facts["dtype"]]

    def get_shape(self):
        """The shape in the file, as a list."""
        return shape_in_file(self._name, self._dtype, self._facts["shape"])

    @property
    def shape(self):
        """The shape of the tensor in torch, which indices refer to. That of the type F4 counts pairs."""
        return list(self._facts["shape"])

    def get_dtype(self):
        """The file's name of the type, such as "BF16"."""
        return self._facts["dtype"]

    def __getitem__(self, index):
        """Reads a part and returns it as a new tensor. IndexError, TypeError or ValueError for an index that torch
        would reject or that is not one of the above, OSError if the part cannot be read."""
        shape = self._facts["shape"]
        picks = [_pick(one, length, at) for at, (one, length) in enumerate(zip(_one_each(index, shape), shape))]
        box = [range(pick, pick + 1) if isinstance(pick, int) else pick for pick in picks]
        out = self._read(box)
        kept = [len(pick) for pick in picks if not isinstance(pick, int)]
        return out.view(kept)

    def _read(self, box):
        """The elements of a box of indices, one range for each dimension."""
        shape = [len(pick) for pick in box]
        steps = _strides(self._facts["shape"], self._dtype.itemsize)
        first = self._facts["data_offsets"][0] + sum(pick.start * step for pick, step in zip(box, steps))
        if 0 in shape:
            return torch.empty(shape, dtype=self._dtype, device=self._device)
        outer, run = _runs(box, steps, self._dtype.itemsize)
        if math.prod(shape[:outer]) == 1 and run == math.prod(shape) * self._dtype.itemsize:
            memory = self._shard.read(self._handle, self._device, first, first + run)
            return view(memory, {**self._facts, "shape": shape, "data_offsets": (first, first + run)}, first)
        out = torch.empty(shape, dtype=_BITS[self._dtype.itemsize])
        advise_huge_pages(out)
        self._gather(out, box, steps)
        return out.view(self._dtype).to(self._device)

    def _gather(self, out, box, steps):
        """Reads a box into a contiguous tensor of its shape, in parts where it has too many ranges or gaps."""
        shape, item = list(out.shape), self._dtype.itemsize
        outer, run = _runs(box, steps, item)
        count = math.prod(shape[:outer])
        dense = run * count == out.nbytes
        if (count > _MOST_RANGES or (not dense and run * count > _MOST_SCRATCH)) and out.numel() > 1:
            along = next(at for at, length in enumerate(shape) if length > 1)
            middle = shape[along] // 2
            for part in (slice(None, middle), slice(middle, None)):
                self._gather(out[(slice(None),) * along + (part,)],
                             [*box[:along], box[along][part], *box[along + 1:]], steps)
            return
        offsets = [self._facts["data_offsets"][0] + sum(pick.start * step for pick, step in zip(box, steps))]
        for pick, step in zip(box[:outer], steps):
            offsets = [offset + at * pick.step * step for offset in offsets for at in range(len(pick))]
        memory = out if dense else torch.empty(run * count, dtype=torch.uint8)
        self._shard.read_ranges(self._handle, memory, [(offset, run) for offset in offsets])
        if not dense:
            inner = [pick.step * step // item for pick, step in zip(box[outer:], steps[outer:])]
            ahead = [step * run // item for step in _strides(shape[:outer], 1)]
            out.copy_(memory.view(out.dtype).as_strided(shape, ahead + inner))


def _strides(shape, item):
    strides, step = [], item
    for length in reversed(shape):
        strides.insert(0, step)
        step *= length
    return strides


def _runs(box, steps, item):
    """Returns (outer, bytes): each index of the first `outer` dimensions is a run of bytes in the file, which contains
    its elements of the other dimensions and gaps of less than a block between them."""
    outer, run = len(box), item
    for pick, step in zip(reversed(box), reversed(steps)):
        apart = pick.step * step
        if len(pick) > 1 and apart - run >= _NEARBY:
            break
        outer, run = outer - 1, run + (len(pick) - 1) * apart
    return outer, run


def _one_each(index, shape):
    """The index of each dimension."""
    index = index if isinstance(index, tuple) else (index,)
    ellipses = sum(one is Ellipsis for one in index)
    if ellipses > 1 or len(index) - ellipses > len(shape):
        raise IndexError(f"{index!r} has too many indices for the shape {shape}")
    at = next((at for at, one in enumerate(index) if one is Ellipsis), len(index))
    missing = len(shape) - (len(index) - ellipses)
    return (*index[:at], *(slice(None),) * missing, *index[at + 1:])


def _pick(one, length, dimension):
    """A range of indices of a dimension, or one index."""
    if isinstance(one, slice):
        pick = range(*one.indices(length))
        if pick.step < 1:
            raise ValueError(f"the step of dimension {dimension} is {pick.step}: it must be at least 1")
        return pick
    if isinstance(one, bool) or not hasattr(one, "__index__"):
        raise TypeError(f"the index of dimension {dimension} is {one!r}: it must be a number, a slice or an ellipsis; "
                        "index the tensor of get_tensor() by anything else")
    number = operator.index(one)
    if not -length <= number < length:
        raise IndexError(f"index {number} is out of bounds for dimension {dimension} with size {length}")
    return number % length
