# SPDX-License-Identifier: Apache-2.0
"""The tensors of many files one after the other, within a bound of memory."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch

from weightfs._core.arguments import bytes_from, whole
from weightfs._core.future import Future
from weightfs._core.handle import Handle
from weightfs._core.opened import Closing
from weightfs._core.types import Files
from weightfs.safetensors._files import Device, device_of, handle_for, open_all
from weightfs.safetensors._format import SafetensorKeyError

if TYPE_CHECKING:
    from typing_extensions import Self

_GROUP = 8 << 20   # bytes; smaller tensors that follow each other in a file are read together
_MOST_CONCURRENCY = 1024


class _Read:
    """One read of neighbors in a file; `names` are those not yet yielded."""

    def __init__(self, shard, begin, end, names):
        self.shard, self.begin, self.end, self.names = shard, begin, end, names
        self.memory, self.future = None, None

    @property
    def nbytes(self):
        return self.end - self.begin

    def start(self, handle, device):
        """An error is the outcome of the future, because tensors before this one must be yielded first."""
        try:
            self.memory, self.future = self.shard.start_read(handle, device, self.begin, self.end)
        except Exception as error:
            self.future = Future()
            self.future.set_exception(error)


def read_all(shards, chosen, memory, concurrency, device, handle):
    """Yields (name, tensor) of open files. chosen: a container of the names. The other arguments are those of
    weightfs.safetensors.stream. At the end, also after an error, it cancels the reads under way and waits for them."""
    planned, under_way, used = _plan(shards, chosen, min(_GROUP, memory)), collections.deque(), 0

    def start():
        """Starts the next reads, as far as the bounds permit. A read may exceed the memory if it is alone."""
        nonlocal used
        while planned and len(under_way) < concurrency and (not under_way or used + planned[0].nbytes <= memory):
            planned[0].start(handle, device)
            used += planned[0].nbytes
            under_way.append(planned.popleft())

    try:
        start()
        while under_way:
            read = under_way[0]
            with read.shard.reading():
                read.future.result()
                if not read.memory.shared:
                    read.shard.check()
            while read.names:
                name = read.names.popleft()
                made = [read.memory.tensor(read.shard.tensors[name], read.begin)]
                if not read.names:
                    under_way.popleft()
                    read.memory, used = None, used - read.nbytes
                    start()   # while the program uses the tensor
                yield name, made.pop()   # nothing here refers to it then
    finally:
        for read in under_way:
            read.future.cancel()
        for read in under_way:
            read.future.wait()


class TensorStream(Closing):
    """An iterator of (name, tensor) over the tensors of files, in the order of the files and of the offsets in them,
    with several reads under way. close(), also at the end of a with block, cancels them, waits for them and closes the
    files. One thread at a time may use it."""

    def __init__(self, files: Files, memory: int | str = "1G", concurrency: int = 4, device: Device = "cpu",
                 names: Iterable[str] | None = None, *, handle: Handle | None = None) -> None:
        """Opens the files.

        Args:
            files, device, handle: as `filename`, device and handle in SafeOpen.
            memory: bytes, or a text such as "512M": the bound of what is under way and not yet yielded. A larger tensor
                is read alone. Tensors that were yielded belong to the program and do not count.
            concurrency: the most reads under way. Small neighbours in a file are one read.
            names: the tensors to read; by default all. SafetensorError (also a KeyError) if no file has one of them.

        Raises:
            SafetensorError, OSError: as SafeOpen. A read that fails raises OSError in its place of the iteration, which
                then ends."""
        memory = bytes_from("memory", memory)
        concurrency, device = whole("concurrency", concurrency, 1, _MOST_CONCURRENCY), device_of(device)
        with contextlib.ExitStack() as stack:
            shards, places = open_all(files, handle)
            for shard in shards:
                stack.callback(shard.close)
            used = stack.enter_context(handle_for(handle, device))
            self._tensors = read_all(shards, _chosen(names, places), memory, concurrency, device, used)
            self._stack = stack.pop_all()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> tuple[str, torch.Tensor]:
        try:
            return next(self._tensors)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Cancels the reads that are under way and waits for them. The stream is then at its end."""
        self._tensors.close()
        self._stack.close()

    def __del__(self) -> None:
        if hasattr(self, "_stack"):
            self.close()


def _chosen(names, places):
    if names is None:
        return places
    if isinstance(names, str):
        raise TypeError("names is a string: give a list of names")
    chosen = set(names)
    missing = sorted(chosen - places.keys())
    if missing:
        raise SafetensorKeyError(f"no file has the tensors {', '.join(map(repr, missing))}")
    return chosen


def _plan(shards, chosen, most):
    """The reads of neighbors, of at most `most` bytes unless one tensor has more."""
    planned = collections.deque()
    for shard in shards:
        for name, facts in shard.tensors.items():
            begin, end = facts["data_offsets"]
            read = planned[-1] if planned else None
            if name not in chosen:
                continue
            if read is not None and read.shard is shard and read.end == begin and end - read.begin <= most:
                read.names.append(name)
                read.end = end
            else:
                planned.append(_Read(shard, begin, end, collections.deque([name])))
    return planned
