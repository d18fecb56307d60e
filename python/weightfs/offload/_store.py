# SPDX-License-Identifier: Apache-2.0
"""The store of an offloaded module: a directory of files, and one preallocated buffer that holds a part of them, read
ahead in the order of their use.

An entry is one file's content. Its file has two generations: changes go to the one that the last commit does not name,
so the committed content stays until the next commit. state.json names the generation of each file."""

import concurrent.futures
import contextlib
import dataclasses
import errno
import fcntl
import json
import math
import os
import time

import torch

from weightfs._core.files import writing
from weightfs._core.future import log
from weightfs._core.handle import mode_of_process, the_handle
from weightfs._core.memory import new_like
from weightfs.offload._groups import PAGE
from weightfs.safetensors._files import open_all
from weightfs.safetensors._format import DTYPES

_STATE, _LOCK, _FORMAT = "state.json", "lock", 1
_UNKNOWN = 1 << 40   # the position of an entry whose next use is not predicted
_THREADS = 2         # for reads, and for writes: one gets its lease while the other transfers
_READ_AHEAD = 16     # maximum number of entries that are read ahead


@dataclasses.dataclass
class Stats:
    """Counters since the offload or the last reset(). waited_s: seconds that the program waited for reads and writes.
    peak_bytes: the largest part of the buffer that was in use; it never exceeds `memory`."""

    bytes_read: int = 0
    bytes_written: int = 0
    waited_s: float = 0.0
    peak_bytes: int = 0
    since: float = dataclasses.field(default_factory=time.perf_counter)

    @property
    def share_waited(self) -> float:
        """The share of the time since the last reset that was waited, from 0 to 1."""
        return self.waited_s / max(time.perf_counter() - self.since, 1e-9)

    def reset(self) -> None:
        self.__init__()


class Entry:
    """`nbytes` is a multiple of the page size. `generation` is where the newest written content is, and `committed`
    where the committed content is; None: nowhere. `begin` is the offset in the buffer, None without memory."""

    def __init__(self, path, nbytes, committed=None, temporary=False):
        """temporary: the content need not survive the process."""
        self.path, self.nbytes, self.temporary = path, nbytes, temporary
        self.committed = self.generation = committed
        self.begin, self.pins, self.dirty, self.transfer, self.reading = None, 0, False, None, False

    def file(self, generation):
        return f"{self.path}.{generation}"

    @property
    def empty(self):
        """True if there is no content, neither in memory nor in a file."""
        return self.generation is None and not self.dirty

    @property
    def end(self):
        return self.begin + self.nbytes


def _start(entry, threads, function, *arguments):
    """Starts a transfer of an entry. If that fails, or is interrupted, entry.transfer is None, or a transfer that runs:
    an executor may have a task that it could not start a thread for."""
    future = concurrent.futures.Future()
    try:
        entry.transfer = future
        threads.submit(_carry_out, future, function, *arguments)
    except BaseException:
        if future.cancel():
            entry.transfer = None
        raise


def _unpin(pinned):
    while pinned:
        pinned[-1].pins -= 1
        del pinned[-1]


def _carry_out(future, function, *arguments):
    if future.set_running_or_notify_cancel():
        try:
            future.set_result(function(*arguments))
        except BaseException as error:
            future.set_exception(error)


def _shut_down(threads):
    try:
        threads.shutdown(cancel_futures=True)
    except BaseException:   # an interrupt: the transfers under way go on, so they are waited for again
        _shut_down(threads)
        raise


class Cache:
    """Externally synchronized. Consistent after an interrupt at any place: `_held` alone says which entries have memory.
    Errors of transfers are raised by the call that waits for them.

    Which entry comes after which two is remembered from the last time, so the order of use is learned from the first
    pass. Memory is taken from the entry whose next use is furthest away."""

    def __init__(self, memory, device, durable):
        self.memory, self._durable, self.stats = memory, durable, Stats()
        self._buffer = _new_buffer(memory, device)
        self._mode = mode_of_process() if self._buffer.is_cuda else None
        # Starting an operation takes as long as the mount takes to answer, so it is not done on the caller's thread.
        self._readers = concurrent.futures.ThreadPoolExecutor(_THREADS, "weightfs-offload-read")
        self._writers = concurrent.futures.ThreadPoolExecutor(_THREADS, "weightfs-offload-write")
        self._held = []        # entries that have memory, by address
        self._follows, self._last = {}, (None, None)

    def close(self):
        """Ends the transfers, also if interrupts are raised: another cache may use the files afterwards."""
        try:
            _shut_down(self._readers)
        finally:
            try:
                _shut_down(self._writers)
            finally:
                self._free()

    def _free(self):
        for entry in self._held:
            if entry.transfer is not None:
                entry.transfer.cancel()
        self._buffer = None

    def view(self, entry):
        """The bytes of an acquired entry."""
        return self._buffer[entry.begin:entry.end]

    def owns(self, tensor):
        return 0 <= tensor.untyped_storage().data_ptr() - self._buffer.data_ptr() < self.memory

    @contextlib.contextmanager
    def acquired(self, entries, learn=True, room=0):
        """Keeps entries in memory during the block. An entry that is `empty` gets undefined content. They are placed so
        that others with `room` bytes together can be acquired during the block.

        Raises:
            MemoryError: they do not fit into the memory together with those that are in use.
            OSError: a file cannot be read, or another entry cannot be written."""
        pinned = []
        try:
            for entry in entries:
                entry.pins += 1
                pinned.append(entry)
                if learn:
                    self._follows[self._last] = entry
                    self._last = (self._last[1], entry)
            upcoming = self._upcoming()
            self._fetch(entries, upcoming, room)
            self._read_ahead(upcoming)
            for entry in entries:
                if entry.reading:
                    self._settle(entry)
            yield
        finally:
            try:
                _unpin(pinned)
            finally:   # also after an interrupt in it
                _unpin(pinned)

    def changed(self, entry):
        """Tells that the program changes an acquired entry, or has changed it. Its write, if one is under way, ends
        first."""
        try:
            self._settle(entry)
        finally:
            entry.dirty = True

    def start_write(self, entry):
        """Writes a changed entry, so that its memory can be used for others soon."""
        if entry.dirty:
            self._settle(entry)
            before, target = entry.generation, 0 if entry.committed is None else 1 - entry.committed
            view, path = self.view(entry), entry.file(target)
            try:
                entry.generation, entry.dirty = target, False
                _start(entry, self._writers, self._write, view, path, self._durable and not entry.temporary)
            except BaseException:
                if entry.transfer is None:
                    entry.dirty, entry.generation = True, before
                raise
            self.stats.bytes_written += entry.nbytes

    def discard(self, entry):
        """Forgets the content."""
        with contextlib.suppress(Exception):   # a failed transfer of this content has lost nothing
            self._settle(entry)
        entry.dirty = False
        self._drop(entry)
        entry.generation = None

    def flush(self, entries):
        """Writes the changed entries of `entries` and waits."""
        for entry in entries:
            self.start_write(entry)
        for entry in entries:
            self._settle(entry)

    def read(self, tensor, path, offset=0):
        with the_handle(None, self._mode) as handle:
            handle.read_into(tensor, path, offset)

    # --- Internals ---

    def _write(self, tensor, path, durable):
        with the_handle(None, self._mode) as handle:
            handle.write_from(tensor, path, durable=durable)

    def _fetch(self, entries, upcoming, room):
        def missing():
            return sorted((entry for entry in entries if entry not in self._held), key=lambda entry: -entry.nbytes)

        if all(self._place(entry, upcoming, None) for entry in missing()) and self._has_room(room):
            return
        # The memory is fragmented: places these entries anew.
        movable = [entry for entry in self._held if entry.pins == entries.count(entry)]
        self.flush(movable)
        for entry in movable:
            self._drop(entry)
        for entry in missing():
            if not self._place(entry, {}, None):
                in_use = sum(other.nbytes for other in self._held if other.pins)
                wanted = sum(other.nbytes for other in missing())
                raise MemoryError(f"{os.path.basename(entry.path)} and the entries used with it need {wanted} bytes "
                                  f"beside {in_use} in use, but memory= is {self.memory}: raise memory=, or make the "
                                  "blocks smaller (blocks=)")

    def _has_room(self, nbytes):
        """True if the entries in use leave so many bytes in one piece."""
        at = 0
        for entry in (entry for entry in self._held if entry.pins):
            if entry.begin - at >= nbytes:
                return True
            at = entry.end
        return self.memory - at >= nbytes

    def _place(self, entry, upcoming, position):
        """Gives memory to an entry and starts its read. Returns False if there is no memory. position: that of the
        entry in the predicted order, if it is read ahead; then nothing waits, and no entry that is used before it
        loses its memory."""
        window = self._window(entry.nbytes, upcoming, position)
        if window is None:
            return False
        begin, victims = window
        if position is not None and sum([self._is_busy(victim) for victim in victims]):
            return False
        for victim in victims:
            self._drop(victim)
        reads, view = entry.generation is not None, self._buffer[begin:begin + entry.nbytes]
        held = sorted([*self._held, entry], key=lambda other: begin if other is entry else other.begin)
        try:
            entry.transfer, entry.reading, entry.begin, self._held = None, reads, begin, held
            if reads:
                _start(entry, self._readers, self.read, view, entry.file(entry.generation))
                self.stats.bytes_read += entry.nbytes
        except BaseException:
            if entry.transfer is None:
                self._forget(entry)
            raise
        self.stats.peak_bytes = max(self.stats.peak_bytes, sum(other.nbytes for other in self._held))
        return True

    def _window(self, nbytes, upcoming, position):
        """Returns (offset, entries to drop) of the range whose entries are used last, or None."""
        best = None
        for begin in [0, *(entry.end for entry in self._held)]:
            victims = [entry for entry in self._held if entry.begin < begin + nbytes and begin < entry.end]
            soonest = min((upcoming.get(victim, _UNKNOWN) for victim in victims), default=math.inf)
            if begin + nbytes > self.memory or any(victim.pins for victim in victims):
                continue
            if position is not None and soonest <= position:
                continue
            if best is None or soonest > best[0]:
                best = soonest, begin, victims
        return best and best[1:]

    def _is_busy(self, entry):
        """True if the entry's memory cannot be used at once. Starts the write of a changed entry."""
        if entry.transfer is None or entry.transfer.done():
            self.start_write(entry)
        return entry.transfer is not None and not entry.transfer.done()

    def _drop(self, entry):
        """Takes the memory of an entry, once its content is in its file."""
        if entry in self._held:
            self.start_write(entry)
            self._settle(entry)
            self._forget(entry)

    def _forget(self, entry):
        """Takes the memory of an entry, whose content is in its file."""
        held = [other for other in self._held if other is not entry]
        self._held, entry.begin, entry.transfer, entry.reading = held, None, None, False

    def _settle(self, entry):
        """Waits for the transfer of an entry."""
        transfer, reading = entry.transfer, entry.reading
        if transfer is None:
            return
        begun = time.perf_counter()
        try:
            transfer.result()
        finally:
            self.stats.waited_s += time.perf_counter() - begun
            if transfer.done():
                failed = transfer.cancelled() or transfer.exception() is not None
                if failed and reading:
                    self._forget(entry)
                elif failed:
                    entry.dirty = True   # its only content is in memory
                entry.transfer, entry.reading = None, False

    def _upcoming(self):
        """The entries of the predicted order, with their positions."""
        positions, pair = {}, self._last
        for position in range(2 * len(self._follows)):
            entry = self._follows.get(pair)
            if entry is None:
                break
            positions.setdefault(entry, position)
            pair = (pair[1], entry)
        return positions

    def _read_ahead(self, upcoming):
        for entry, position in list(upcoming.items())[:_READ_AHEAD]:
            if entry not in self._held and entry.generation is not None and not self._place(entry, upcoming, position):
                break


def _new_buffer(memory, device):
    if torch.device(device).type != "cpu":
        return torch.empty(memory, dtype=torch.uint8, device=device)
    try:
        return new_like(memory, torch.empty(0, dtype=torch.uint8))
    except OSError as error:
        if error.errno not in (errno.ENOMEM, errno.EPERM, errno.EAGAIN):
            raise
        log.warning("offload: the buffer of %d bytes is not locked in memory: %s; raise the limit (ulimit -l)", memory,
                    error.strerror)
    buffer = torch.empty(memory + PAGE, dtype=torch.uint8)
    return buffer[-buffer.data_ptr() % PAGE:][:memory]


class Directory:
    """Owned by one process at a time."""

    def __init__(self, path, resume):
        """Raises:
            FileExistsError: there is an offloaded module already, and not `resume`.
            BlockingIOError: another process uses it.
            ValueError: state.json is damaged."""
        self.path = os.path.abspath(os.fsdecode(path))
        with contextlib.suppress(FileExistsError):
            os.mkdir(self.path)
        with contextlib.ExitStack() as held:
            lock = held.enter_context(open(os.path.join(self.path, _LOCK), "w"))
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BlockingIOError(errno.EAGAIN, "another program, or another module of this one, uses the "
                                      "directory: end it, or call weightfs.offload.close()", self.path) from None
            self.state = self._read_state()
            if self.state is not None and not resume:
                raise FileExistsError(errno.EEXIST, "the directory has an offloaded module: continue it with "
                                      "resume=True, or delete the directory", self.path)
            self.close = held.pop_all().close

    def file(self, name):
        return os.path.join(self.path, name)

    def write_state(self, state, durable):
        """Replaces state.json: it is the old one or the new one, even after a kill."""
        with writing(self.file(_STATE), None, durable, atomic=True) as stream:
            stream.write(json.dumps({"format": _FORMAT, **state}).encode())
        self.state = state

    def _read_state(self):
        try:
            with open(self.file(_STATE), "rb") as stream:
                state = json.loads(stream.read())
        except FileNotFoundError:
            return None
        except ValueError:
            state = None
        if not isinstance(state, dict) or not {"groups", "generations", "optimizer"} <= state.keys():
            raise ValueError(f"{self.file(_STATE)} is damaged: restore it from a backup, or delete the directory")
        if state.get("format") != _FORMAT:
            raise ValueError(f"{self.file(_STATE)} has the format {state.get('format')}; this version of weightfs reads "
                             f"the format {_FORMAT}")
        return state

    def committed_file(self, name):
        """(generation, path) of a file in state.json, (None, None) if it has none."""
        generation = None if self.state is None else self.state["generations"].get(name)
        return generation, None if generation is None else self.file(f"{name}.{generation}")

    def committed(self, name, nbytes):
        """The generation of a file in state.json, None if it has none. Raises FileNotFoundError, or ValueError for a
        file of another size."""
        generation, path = self.committed_file(name)
        if path is not None and (size := os.stat(path).st_size) != nbytes:
            raise ValueError(f"{path} has {size} bytes instead of {nbytes}: it is damaged; restore the directory from "
                             "a backup, or delete it")
        return generation

    def check_groups(self, described):
        """ValueError if the module is not the one that was offloaded here."""
        for name in sorted(described.keys() | self.state["groups"].keys()):
            ours, saved = described.get(name), self.state["groups"].get(name)
            if ours != saved:
                raise ValueError(f"{self.path} belongs to another module or other blocks: {name} has {saved} there and "
                                 f"{ours} here; build the same module, or choose another directory")


def fill(groups, source, cache):
    """Writes the tensors of the groups into their files: those of the safetensors files `source`, and others from
    memory. The new files are deleted if that fails. ValueError if a tensor has neither memory nor a place in the files,
    or the files have none at all."""
    members = [member for group in groups for member in group.members]
    shards = {} if source is None else open_all(source)[1]   # by names of tensors
    found = {member: next((name for name in member.names if name in shards), None) for member in members}
    if source is not None and not any(found.values()):
        raise ValueError(f"source= has no tensor of the module: it has {sorted(shards)[:3]} and the module has "
                         f"{[member.name for member in members][:3]}; rename them in the files, or offload the "
                         "submodule that the files belong to")
    missing = [member.name for member in members if member.tensor.is_meta and found[member] is None]
    if missing:
        raise ValueError(f"{len(missing)} tensors are on the meta device and not in source=: {missing[:5]}; give the "
                         "safetensors files that have them, or create them on the CPU")
    for member, name in found.items():
        if name is not None and tuple(shape := shards[name].tensors[name]["shape"]) != member.shape:
            raise ValueError(f"{name} has the shape {tuple(shape)} in {shards[name].path} and {tuple(member.shape)} in "
                             "the module")
    try:
        for group in groups:
            with cache.acquired([group.entry], learn=False):
                cache.changed(group.entry)
                for member, view in zip(group.members, group.layout.views(cache.view(group.entry))):
                    if found[member] is None:
                        view.copy_(member.tensor.detach())
                    elif view.numel():
                        shard, facts = shards[found[member]], shards[found[member]].tensors[found[member]]
                        loaded = view if DTYPES[facts["dtype"]] == view.dtype else torch.empty(
                            view.shape, dtype=DTYPES[facts["dtype"]], device=view.device)
                        cache.read(loaded, shard.path, shard.begin + facts["data_offsets"][0])
                        if loaded is not view:
                            view.copy_(loaded)
            cache.start_write(group.entry)
        cache.flush([group.entry for group in groups])
    except BaseException:
        for group in groups:
            with contextlib.suppress(OSError):
                cache.discard(group.entry)
            with contextlib.suppress(OSError):
                os.unlink(group.entry.file(0))
        raise
