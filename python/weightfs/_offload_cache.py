# SPDX-License-Identifier: Apache-2.0
"""The memory of weightfs.offload: one preallocated buffer that holds a part of the files, read ahead in the order of
their use.

An entry is one file's content. Its file has two generations: changes go to the one that the last commit does not name,
so the committed content stays until the next commit."""

import concurrent.futures
import contextlib
import dataclasses
import errno
import logging
import math
import os
import time

import torch

from weightfs._handle import Handle, mode_of_process
from weightfs._locked import new_like

log = logging.getLogger("weightfs")
_PAGE = 4096
_UNKNOWN = 1 << 40   # the position of an entry whose next use is not predicted
_THREADS = 2         # for reads, and for writes: one gets its lease while the other transfers
_READ_AHEAD = 16     # maximum number of entries that are read ahead


def padded(nbytes, alignment=_PAGE):
    return -(-nbytes // alignment) * alignment


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
    def share_waited(self):
        """The share of the time since the last reset that was waited, from 0 to 1."""
        return self.waited_s / max(time.perf_counter() - self.since, 1e-9)

    def reset(self):
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


class Cache:
    """Externally synchronized. Errors of transfers are raised by the call that waits for them.

    Which entry comes after which two is remembered from the last time, so the order of use is learned from the first
    pass. Memory is taken from the entry whose next use is furthest away."""

    def __init__(self, memory, device, durable):
        self.memory, self._durable, self.stats = memory, durable, Stats()
        self._buffer = _new_buffer(memory, device)
        mode = mode_of_process() if self._buffer.is_cuda else None
        self.reads, self.writes = Handle(overlap_events=True, mode=mode), Handle(overlap_events=True, mode=mode)
        # Starting an operation takes as long as the mount takes to answer, so it does not happen on the caller's thread.
        self._readers = concurrent.futures.ThreadPoolExecutor(_THREADS, "weightfs-offload-read")
        self._writers = concurrent.futures.ThreadPoolExecutor(_THREADS, "weightfs-offload-write")
        self._held = []        # entries that have memory, by address
        self._follows, self._last = {}, (None, None)

    def close(self):
        for threads, handle in ((self._readers, self.reads), (self._writers, self.writes)):
            threads.shutdown(cancel_futures=True)
            handle.close()
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
        self.acquire(entries, learn, room)
        try:
            yield
        finally:
            self.release(entries)

    def acquire(self, entries, learn=True, room=0):
        for entry in entries:
            entry.pins += 1
            if learn:
                self._follows[self._last] = entry
                self._last = (self._last[1], entry)
        try:
            upcoming = self._upcoming()
            self._fetch(entries, upcoming, room)
            self._read_ahead(upcoming)
            for entry in entries:
                if entry.reading:
                    self._settle(entry)
        except BaseException:
            self.release(entries)
            raise

    def release(self, entries):
        for entry in entries:
            entry.pins -= 1

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
            target = 0 if entry.committed is None else 1 - entry.committed
            entry.transfer = self._writers.submit(self.writes.write_from, self.view(entry), entry.file(target),
                                                  durable=self._durable and not entry.temporary)
            entry.dirty, entry.generation = False, target
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

    # --- Internals ---

    def _fetch(self, entries, upcoming, room):
        missing = sorted((entry for entry in entries if entry.begin is None), key=lambda entry: -entry.nbytes)
        if all(self._place(entry, upcoming, None) for entry in missing) and self._has_room(room):
            return
        # The memory is fragmented: places these entries anew.
        self.release(entries)
        try:
            movable = [entry for entry in self._held if entry.pins == 0]
            self.flush(movable)
            for entry in movable:
                self._drop(entry)
        finally:
            for entry in entries:
                entry.pins += 1
        for entry in sorted((entry for entry in entries if entry.begin is None), key=lambda entry: -entry.nbytes):
            if not self._place(entry, {}, None):
                in_use = sum(other.nbytes for other in self._held if other.pins)
                wanted = sum(other.nbytes for other in entries if other.begin is None)
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
        entry.begin = begin
        if entry.generation is not None:
            entry.transfer = self._readers.submit(self.reads.read_into, self.view(entry), entry.file(entry.generation))
            entry.reading = True
            self.stats.bytes_read += entry.nbytes
        self._held = sorted([*self._held, entry], key=lambda other: other.begin)
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
        if entry.begin is not None:
            self.start_write(entry)
            self._settle(entry)
            self._held.remove(entry)
            entry.begin = None

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
                entry.transfer, entry.reading = None, False
                if transfer.cancelled() or transfer.exception() is not None:
                    self._failed(entry, reading)

    def _failed(self, entry, reading):
        if reading:
            self._held.remove(entry)
            entry.begin = None
        else:
            entry.dirty = True   # its only content is in memory

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
            if entry.begin is None and entry.generation is not None and not self._place(entry, upcoming, position):
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
    buffer = torch.empty(memory + _PAGE, dtype=torch.uint8)
    return buffer[-buffer.data_ptr() % _PAGE:][:memory]
