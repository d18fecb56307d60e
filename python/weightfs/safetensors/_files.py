# SPDX-License-Identifier: Apache-2.0
"""The files of a model: how they are found, and their open state."""

import json
import mmap
import os

import torch

from weightfs._gds import gds_handle
from weightfs._handle import aio_handle
from weightfs._memory import HUGE, advise_huge_pages
from weightfs._stream import errors_of, name_of, the_handle
from weightfs.safetensors._format import DTYPES, read_header

_PAGE = 4096
_CACHE_LINE = 64   # torch's alignment of memory
_INDEX = "model.safetensors.index.json"


def device_of(device):
    """Converts a number or a name to a device. With a number alone, torch would first check whether there is a GPU."""
    try:
        found = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    except RuntimeError:
        found = None
    if found is None or found.type not in ("cpu", "cuda"):
        raise ValueError(f"device is {device}: tensors can be loaded on the CPU (\"cpu\") and on CUDA GPUs (\"cuda\", "
                         "\"cuda:1\", or the number 1)")
    return found


def handle_for(handle, device):
    """The caller's handle, or a temporary one for the device. Without a GPU, its error gives the reason."""
    return the_handle(handle, aio_handle if device.type == "cpu" else gds_handle)


def _sources_of(files):
    """The files that `files` stands for, each as (path, index, names): the names that an index expects in it."""
    if not isinstance(files, (str, bytes, os.PathLike)):
        return [source for one in files for source in _sources_of(one)]
    path = os.fsdecode(files)
    if os.path.isdir(path):
        if os.path.exists(os.path.join(path, _INDEX)):
            return _shards_of(os.path.join(path, _INDEX))
        found = sorted(name for name in os.listdir(path) if name.endswith(".safetensors"))
        if not found:
            raise FileNotFoundError(f"{path}: the directory has no file NAME.safetensors and no {_INDEX}")
        return [(os.path.join(path, name), None, ()) for name in found]
    return _shards_of(path) if path.endswith(".json") else [(path, None, ())]


def _shards_of(index):
    expected = {}
    with open(index, "rb") as stream:
        try:
            for name, file in json.load(stream)["weight_map"].items():
                expected.setdefault(file, []).append(name)
            if not expected or any(os.path.basename(file) != file for file in expected):
                raise ValueError("weight_map must have names of files beside the index")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"{index}: not an index of safetensors: {error!r}") from error
    return [(os.path.join(os.path.dirname(index), file), index, names) for file, names in sorted(expected.items())]


def open_all(files, stack):
    """Opens a file, a directory of shards, the files of an index (NAME.json), or several of these; `stack` closes them.

    Returns:
        (shards, name -> shard), in the order of the files and of the offsets in them.

    Raises:
        ValueError: no files, two files with a tensor of one name, a damaged header or index.
        OSError: a file cannot be opened, or a directory has none."""
    shards, places = [], {}
    for path, index, expected in _sources_of(files):
        shard = stack.enter_context(Shard(path))
        for name in shard.tensors:
            if name in places:
                raise ValueError(f"{shard.path}: the tensor {name!r} is also in {places[name].path}")
            places[name] = shard
        for name in expected:
            if name not in shard.tensors:
                raise ValueError(f"{index}: it expects a tensor {name!r} in {shard.path}, which has none")
        shards.append(shard)
    if not shards:
        raise ValueError("files is empty: give at least one file of safetensors")
    return shards, places


class Shard:
    """An open file with its checked header. `tensors` has name -> facts in the order of the file. All reads use one
    descriptor, because the path may name another file by then. Offsets count from the beginning of the data.
    Thread-safe, apart from close()."""

    def __init__(self, path):
        self.path = os.fsdecode(path)
        self._stream = open(path, "rb", buffering=0)
        try:
            self._name = name_of(self._stream.fileno())
            self.tensors, self.metadata, self.begin, self.size = read_header(path, self._stream.fileno())
        except BaseException:
            self._stream.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._stream.close()

    def read(self, handle, device, begin, end):
        """The bytes of a range, as a one-dimensional tensor on the device."""
        memory = self.memory(device, begin, end)
        if memory.nbytes:
            with self.reading():
                handle.read_into(memory, self._name, self.begin + begin)
        return memory

    def start_read(self, handle, memory, begin):
        """Starts a read from an offset and returns its Future. Errors name the file within reading()."""
        with self.reading():
            return handle.read_async(memory, self._name, self.begin + begin)

    def read_ranges(self, handle, memory, ranges):
        """Reads ranges (offset, size) into contiguous host memory, as handle.read_ranges does."""
        with self.reading():
            handle.read_ranges(memory, self._name, [(self.begin + offset, size) for offset, size in ranges])

    def reading(self):
        """A block whose errors name the file."""
        if self._stream.closed:
            raise ValueError(f"{self.path}: the file is closed")
        return errors_of(self.path, self._name)

    def memory(self, device, begin, end):
        """Memory for a range. Large host memory begins at the same offset within a page as the data in the file, so
        that nothing needs to be copied, and has huge pages."""
        size, lead = end - begin, (self.begin + begin) % _PAGE
        if device.type != "cpu":
            return torch.empty(size, dtype=torch.uint8, device=device)
        if size < HUGE:
            lead %= _CACHE_LINE
            return torch.empty(lead + size, dtype=torch.uint8)[lead:]
        memory = torch.frombuffer(mmap.mmap(-1, lead + size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS),
                                  dtype=torch.uint8)
        advise_huge_pages(memory)
        return memory[lead:]


def view(memory, facts, base=0, copy=False):
    """The tensor with these facts in memory that holds the data from offset `base` on."""
    dtype, (begin, end) = DTYPES[facts["dtype"]], facts["data_offsets"]
    piece = memory[begin - base:end - base]
    # Files of other programs need not align tensors to their element size.
    copy = copy or piece.storage_offset() % dtype.itemsize != 0
    return (piece.clone() if copy else piece).view(dtype).view(facts["shape"])
