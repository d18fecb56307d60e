# SPDX-License-Identifier: Apache-2.0
"""Lazy access to the tensors of files, as safetensors.safe_open has it, and whole loads."""

from __future__ import annotations

import math
import numbers
from typing import Any

import torch

from weightfs import _native
from weightfs._core import process
from weightfs._core.handle import Handle, chosen
from weightfs._core.memory import advise_huge_pages, describe
from weightfs._core.opened import Closing
from weightfs._core.types import Direct, Files
from weightfs.safetensors._files import Device, device_of, handle_for, open_all
from weightfs.safetensors._format import (DTYPES, SafetensorIndexError, SafetensorKeyError, SafetensorValueError,
                                          read_header, shape_in_file)
from weightfs.safetensors._memory import BITS, memory_for, to_numpy
from weightfs.safetensors._reads import read_all
from weightfs.torch import _shared

_NEARBY = 4096                # bytes; rows of a slice with smaller gaps share blocks of the device
_MOST_SCRATCH = 64 << 20      # bytes that a slice reads beside its own at once
_MOST_RANGES = 1 << 16        # ranges of one operation
_MOST_UNDER_WAY, _READS = 1 << 30, 4   # bytes and reads of get_tensors on a GPU
FRAMEWORKS = {"pt": False, "torch": False, "pytorch": False, "np": True, "numpy": True}   # whether it has arrays


class SafeOpen(Closing):
    """The tensors of one or more files, each read when it is asked for, as by safetensors.safe_open. A context
    manager. Methods may be called by several threads at once, apart from close(). Tensors that were returned own their
    memory."""

    def __init__(self, filename: Files, framework: str = "pt", device: Device = "cpu", *, backend: str = "mmap",
                 handle: Handle | None = None) -> None:
        """Opens the files.

        Args:
            filename: a file, a directory of shards (with model.safetensors.index.json, or all files NAME.safetensors),
                an index (NAME.json), or a list of these.
            framework: "pt" for tensors of torch, "np" for arrays of numpy.
            device: "cpu", or for tensors a CUDA GPU ("cuda:0").
            backend: "mmap" or "pread", without effect: a handle reads the files.
            handle: reads the tensors; None, and in a forked child: the handle of the process.

        Raises:
            SafetensorError (also a ValueError): a header is damaged, two files have a tensor of one name, or an
                argument is not supported.
            OSError: a file cannot be opened."""
        self._opened = None   # shards, name -> shard, _Source
        if framework not in FRAMEWORKS:
            raise SafetensorValueError(f"framework is {framework!r}: it must be \"pt\" for tensors of torch, or \"np\" "
                                       "for arrays of numpy")
        if backend not in ("mmap", "pread"):
            raise SafetensorValueError(f"backend is {backend!r}: it must be \"mmap\" or \"pread\"; a handle reads the "
                                       "files with either")
        device = device_of(device)
        if FRAMEWORKS[framework] and device.type != "cpu":
            raise SafetensorValueError(f"device is {device}: numpy has arrays on the CPU only")
        self._opened = *open_all(filename, handle), _Source(handle, device, FRAMEWORKS[framework])

    def keys(self) -> list[str]:
        """The names of all tensors, sorted."""
        return sorted(self._files()[1])

    def offset_keys(self) -> list[str]:
        """The names of all tensors in the order of the files and of the offsets in them."""
        return list(self._files()[1])

    def metadata(self) -> dict[str, Any] | None:
        """The metadata of all files in one dict of strings, or None if there are none. Of files that give one key
        several values, the first one counts."""
        found = [shard.metadata for shard in self._files()[0] if shard.metadata is not None]
        return {key: value for metadata in reversed(found) for key, value in metadata.items()} if found else None

    def get_tensor(self, name: str) -> Any:
        """Reads a tensor. SafetensorError (also a KeyError) if no file has it, OSError if it cannot be read."""
        shard, source = self._found(name)
        return source.tensor(shard, name)

    def get_tensors(self) -> dict[str, Any]:
        """Reads all tensors, in the order of offset_keys(), with one read for each file (on a GPU: several). Returns a
        dict."""
        shards, places, source = self._files()
        return source.tensors(shards, places)

    def get_slice(self, name: str) -> SafeSlice:
        """A SafeSlice, which reads parts of a tensor, also after close(). SafetensorError (also a KeyError) if no file
        has it."""
        return SafeSlice(name, *self._found(name))

    def close(self) -> None:
        """Closes each file, or leaves that to the last slice of it. Methods then raise SafetensorError (also a
        ValueError)."""
        opened, self._opened = self._opened, None
        for shard in opened[0] if opened else ():
            shard.close()

    def _files(self):
        if self._opened is None:
            raise SafetensorValueError("the file is closed: use it within its with block, or open it again")
        return self._opened

    def _found(self, name):
        shards, places, source = self._files()
        if not isinstance(name, str):
            raise TypeError(f"names of tensors are strings, not {name!r}")
        if name not in places:
            raise SafetensorKeyError(f"{', '.join(shard.path for shard in shards)}: there is no tensor {name!r}")
        return places[name], source


class _Source:
    """How the tensors of open files are read: by which handle, to which device, and whether as arrays of numpy."""

    def __init__(self, handle, device, as_arrays):
        self.device, self._given, self.as_arrays = device, handle, as_arrays

    def handle(self):
        """The caller's handle, which a forked child cannot use: it has that of its process."""
        ours = getattr(self._given, "_process", process.pid) == process.pid
        return handle_for(self._given if ours else None, self.device)

    def tensor(self, shard, name):
        facts = shard.tensors[name]
        begin, end = facts["data_offsets"]
        return self.converted(self.read(shard, begin, end).tensor(facts, begin))

    def tensors(self, shards, chosen):
        if self.device.type != "cpu":
            with self.handle() as handle:
                return dict(read_all(shards, chosen, _MOST_UNDER_WAY, _READS, self.device, handle))
        return {name: self.converted(tensor) for shard in shards
                for name, tensor in self.read(shard, 0, shard.size).tensors(shard.tensors).items()}

    def read(self, shard, begin, end):
        with self.handle() as handle:
            return shard.read(handle, self.device, begin, end)

    def converted(self, tensor):
        return to_numpy(tensor) if self.as_arrays else tensor


class SafeSlice:
    """A tensor in a file, of which indexing reads parts: `part[10:20, :, 3]`. An index of numbers, slices with a
    positive step, and an ellipsis reads the blocks of its elements alone (and gaps of a few blocks between them), in
    one operation: with a lease, in one lease. Any other index (lists, masks, tensors, None) reads the whole tensor. The
    file stays open for as long as the slice exists."""

    def __init__(self, name: str, shard: Any, source: Any) -> None:
        self._name, self._shard, self._source = name, shard, source
        shard.slices.add(self)
        self._facts = shard.tensors[name]
        self._dtype = DTYPES[self._facts["dtype"]]

    def get_shape(self) -> list[int]:
        """The shape in the file, as a list."""
        return shape_in_file(self._name, self._dtype, self._facts["shape"])

    @property
    def shape(self) -> list[int]:
        """The shape of the tensor in torch, which indices refer to. That of the type F4 counts pairs."""
        return list(self._facts["shape"])

    def get_dtype(self) -> str:
        """The file's name of the type, such as "BF16"."""
        return self._facts["dtype"]

    def __getitem__(self, index: Any) -> Any:
        """Reads a part and returns it as a new tensor. The error of torch for an index that torch rejects (for an array
        of numpy, SafetensorError, too), OSError if the part cannot be read."""
        try:
            if not _is_basic(index):
                return self._source.tensor(self._shard, self._name)[index]
            tensor = torch.empty(self._facts["shape"], dtype=BITS[self._dtype.itemsize], device="meta")
            return self._source.converted(self._read(tensor[index]))
        except (IndexError, TypeError, ValueError, RuntimeError) as error:   # RuntimeError: a step beyond every offset
            if not self._source.as_arrays:
                raise
            kind = SafetensorIndexError if isinstance(error, IndexError) else SafetensorValueError
            raise kind(str(error)) from error

    def _read(self, view):
        """The elements of a view of the tensor on the device "meta", which has their offsets."""
        if view.is_contiguous():
            begin = self._offset_of(view)
            facts = {**self._facts, "shape": view.shape, "data_offsets": (begin, begin + view.nbytes)}
            return self._source.read(self._shard, begin, begin + view.nbytes).tensor(facts, begin)
        out = torch.empty(view.shape, dtype=view.dtype)   # torch copies few of the smallest types
        advise_huge_pages(out)
        self._gather(out, view)
        return out.view(self._dtype).to(self._source.device)

    def _gather(self, out, view):
        """Reads a view into a contiguous tensor of its shape, in parts where it has too many ranges or gaps."""
        outer, run = _runs(view)
        shape, item, count = view.shape, view.element_size(), math.prod(view.shape[:outer])
        dense = run * count == out.nbytes
        if (count > _MOST_RANGES or (not dense and run * count > _MOST_SCRATCH)) and out.numel() > 1:
            along = next(at for at, length in enumerate(shape) if length > 1)
            for half, read in zip(out.tensor_split(2, along), view.tensor_split(2, along)):
                self._gather(half, read)
            return
        offsets = [self._offset_of(view)]
        for length, step in zip(shape[:outer], view.stride()):
            offsets = [offset + at * step * item for offset in offsets for at in range(length)]
        memory = out if dense else torch.empty(run * count, dtype=torch.uint8)
        with self._source.handle() as handle:
            self._shard.read_ranges(handle, memory, [(offset, run) for offset in offsets])
        if not dense:
            ahead = [math.prod(shape[at + 1:outer]) * run // item for at in range(outer)]
            out.copy_(memory.view(out.dtype).as_strided(shape, [*ahead, *view.stride()[outer:]]))

    def _offset_of(self, view):
        return self._facts["data_offsets"][0] + view.storage_offset() * view.element_size()


def _runs(view):
    """Returns (outer, bytes): each index of the first `outer` dimensions is a run of bytes in the file, which contains
    its elements of the other dimensions and gaps of less than a block between them."""
    outer, run = view.dim(), view.element_size()
    for length, step in zip(reversed(view.shape), reversed(view.stride())):
        apart = step * view.element_size()
        if length > 1 and apart - run >= _NEARBY:
            break
        outer, run = outer - 1, run + (length - 1) * apart
    return outer, run


def _is_basic(index):
    """Whether an index has only numbers, slices and ellipses."""
    return all(one is Ellipsis or isinstance(one, (numbers.Integral, slice)) and not isinstance(one, bool)
               for one in (index if isinstance(index, tuple) else (index,)))


def load_file(filename: Files, device: Device = "cpu", *, backend: str = "mmap", handle: Handle | None = None,
              direct: Direct = "auto") -> dict[str, torch.Tensor]:
    """Returns a dict of names and tensors on the CPU or a GPU ("cuda:0"). Each tensor has a storage of its own. On the
    CPU one read fills the memory of all of them; each that is freed gives its pages back.

    Args:
        filename: a file, or several as in open().
        device, backend, handle: as in open().
        direct: as in weightfs.torch.save.

    Raises:
        SafetensorError, OSError: as open()."""
    with SafeOpen(filename, "pt", device, backend=backend, handle=chosen(handle, direct)) as model:
        return model.get_tensors()


def load(data: bytes | bytearray | memoryview) -> dict[str, torch.Tensor]:
    """Like load_file, from the bytes of a file, on the CPU."""
    content = memoryview(data).cast("B")
    tensors, _, begin, size, _ = read_header("the bytes", content.nbytes,
                                             lambda length, offset: bytes(content[offset:offset + length]))
    memory = memory_for(device_of("cpu"), size, begin)
    _native.copy(describe(memory.target).arguments, describe(content[begin:]).arguments)
    return memory.tensors(tensors)


def load_model(model: torch.nn.Module, filename: Files, strict: bool = True, device: Device = "cpu", *,
               backend: str = "mmap", handle: Handle | None = None,
               direct: Direct = "auto") -> tuple[set[str], list[str]]:
    """Loads a file of save_model into a torch.nn.Module of the same layout, as safetensors.torch.load_model does.

    Args:
        strict: RuntimeError if the file lacks a tensor of the model, or has one that the model does not have.
        device, backend, handle, direct: as in load_file.

    Returns:
        (missing, unexpected): the names that the file lacks, and the names that the model does not have."""
    loaded = load_file(filename, device, backend=backend, handle=handle, direct=direct)
    tied = _shared.duplicates(model.state_dict(), preferred=loaded)
    missing, unexpected = model.load_state_dict(loaded, strict=False)
    missing = set(missing)
    for name in (name for others in tied.values() for name in others):
        # The file need not contain it: it is filled through the tensor that it shares memory with.
        if name in missing:
            missing.remove(name)
        else:
            unexpected.append(name)
    if strict and (missing or unexpected):
        lines = [f"Error(s) in loading state_dict for {type(model).__name__}:"]
        for what, names in (("Missing", missing), ("Unexpected", unexpected)):
            if names:
                quoted = ", ".join(f'"{name}"' for name in sorted(names))
                lines.append(f"    {what} key(s) in state_dict: {quoted}")
        raise RuntimeError("\n".join(lines))
    return missing, unexpected
