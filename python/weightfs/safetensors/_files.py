# SPDX-License-Identifier: Apache-2.0
"""The files of a model: how they are found, and their open state."""

import functools
import json
import os
import weakref
from typing import Union

import torch

from weightfs._core.files import check_mounted
from weightfs._core.future import Future
from weightfs._core.handle import mode_of_process, the_handle
from weightfs._core.memory import LEAST_MAPPED
from weightfs._core.streams import errors_of, name_of
from weightfs.safetensors._format import SafetensorValueError, read_header
from weightfs.safetensors._memory import mapped_memory, memory_for

Device = Union[str, torch.device, int]
_INDEX = "model.safetensors.index.json"


def device_of(device):
    """Converts a number or a name to a device. With a number alone, torch would first check whether there is a GPU."""
    try:
        found = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    except RuntimeError:
        found = None
    if found is None or found.type not in ("cpu", "cuda"):
        raise SafetensorValueError(f"device is {device}: tensors can be loaded on the CPU (\"cpu\") and on CUDA GPUs "
                                   "(\"cuda\", \"cuda:1\", or the number 1)")
    return found


def handle_for(handle, device):
    """A context manager for the caller's handle, or that of the process for the device. Without a GPU, its error gives
    the reason."""
    return the_handle(handle, None if device.type == "cpu" else mode_of_process())


def _sources_of(files, handle):
    """The files that `files` stands for, each as (path, index, names): the names that an index expects in it."""
    if not isinstance(files, (str, bytes, os.PathLike)):
        return [source for one in files for source in _sources_of(one, handle)]
    check_mounted(files, handle)
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
            raise SafetensorValueError(f"{index}: not an index of safetensors: {error!r}") from error
    return [(os.path.join(os.path.dirname(index), file), index, names) for file, names in sorted(expected.items())]


def open_all(files, handle=None):
    """Opens a file, a directory of shards, the files of an index (NAME.json), or several of these, which `handle` will
    read.

    Returns:
        (shards, name -> shard), in the order of the files and of the offsets in them.

    Raises:
        SafetensorValueError: no files, two files with a tensor of one name, a damaged header or index.
        OSError: a file cannot be opened, or a directory has none."""
    shards, places = [], {}
    for path, index, expected in _sources_of(files, handle):
        shard = Shard(path)
        for name in shard.tensors:
            if name in places:
                raise SafetensorValueError(f"{shard.path}: the tensor {name!r} is also in {places[name].path}")
            places[name] = shard
        for name in expected:
            if name not in shard.tensors:
                raise SafetensorValueError(f"{index}: it expects a tensor {name!r} in {shard.path}, which has none")
        shards.append(shard)
    if not shards:
        raise SafetensorValueError("files is empty: give at least one file of safetensors")
    return shards, places


def _times_of(descriptor):
    found = os.fstat(descriptor)
    return found.st_mtime_ns, found.st_ctime_ns


class Shard:
    """An open file with its checked header. `tensors` has name -> facts in the order of the file. All reads use one
    descriptor, because the path may name another file by then. A program may replace the content in place, so each read
    is followed by check(). Offsets count from the beginning of the data. `slices` has the SafeSlices of its tensors.
    Thread-safe, apart from close()."""

    def __init__(self, path):
        self.path = os.fsdecode(path)
        self.slices = weakref.WeakSet()
        stream = open(path, "rb", buffering=0)
        self._close = weakref.finalize(self, stream.close)
        descriptor = stream.fileno()
        self._stream = stream
        self._name = name_of(descriptor)
        self._content = None   # the inode of shared memory whose header was compared
        try:
            with errors_of(self.path, self._name):
                self._times = _times_of(descriptor)
                self.tensors, self.metadata, self.begin, self.size, self._header = read_header(
                    self.path, os.fstat(descriptor).st_size, functools.partial(os.pread, descriptor))
        except BaseException:
            self._close()
            raise

    def close(self):
        """Closes the file, at once or with the last of its slices. An exception may refer to this object for longer."""
        if not self.slices:
            self._close()

    def read(self, handle, device, begin, end):
        """Memory with a range of the file (weightfs.safetensors._memory)."""
        mapped = self._map(handle, device, begin, end, load=True)
        if mapped is not None:
            return mapped
        memory = memory_for(device, end - begin, self.begin + begin)
        if end > begin:
            with self.reading():
                handle.read_into(memory.target, self._name, self.begin + begin)
                self.check()
        return memory

    def _map(self, handle, device, begin, end, load):
        """Memory that other programs share, or None."""
        if device.type != "cpu" or end - begin < LEAST_MAPPED:
            return None
        with self.reading():
            shared = handle.map(self._stream.fileno(), self.begin + begin, end - begin, load=load)
        if shared is None:
            return None
        try:
            return mapped_memory(shared, end - begin, self.begin + begin) if self._fits(shared, handle, load) else None
        except (OSError, MemoryError):   # this process may not have so much address space, or so many mappings
            return None
        finally:
            os.close(shared)

    def _fits(self, shared, handle, load):
        """True if shared memory, which never gets another content, has the header. It may not be loaded yet."""
        content = os.fstat(shared).st_ino
        if content != self._content and os.pread(shared, self.begin, 0) != self._header:
            loaded = handle.map(self._stream.fileno(), 0, self.begin, load=load)
            if loaded is not None:
                os.close(loaded)
            if os.pread(shared, self.begin, 0) != self._header:
                return False
        self._content = content
        return True

    def check(self):
        """Raises an error if the file has another header than at its opening. Call it after a read of the file."""
        times = _times_of(self._stream.fileno())
        if times != self._times:
            if os.pread(self._stream.fileno(), self.begin, 0) != self._header:
                raise SafetensorValueError(f"{self.path}: the file was replaced after it was opened: open it again")
            self._times = times

    def start_read(self, handle, device, begin, end):
        """Starts the same and returns (memory, Future). Errors of the future name the file within reading(). Loads
        nothing into memory that other programs share."""
        mapped = self._map(handle, device, begin, end, load=False)
        if mapped is not None:
            done = Future()
            done.set_result(end - begin)
            return mapped, done
        memory = memory_for(device, end - begin, self.begin + begin)
        with self.reading():
            return memory, handle.read_async(memory.target, self._name, self.begin + begin)

    def read_ranges(self, handle, memory, ranges):
        """Reads ranges (offset, size) into contiguous host memory, as handle.read_ranges does."""
        with self.reading():
            handle.read_ranges(memory, self._name, [(self.begin + offset, size) for offset, size in ranges])
            self.check()

    def reading(self):
        """A block whose errors name the file."""
        if not self._close.alive:
            raise SafetensorValueError(f"{self.path}: the file is closed")
        return errors_of(self.path, self._name)
