# SPDX-License-Identifier: Apache-2.0
"""The asynchronous operations of a handle, whose memory has to stay until they are done."""

import collections
import contextlib
import itertools
import threading

from weightfs._future import with_label


class Entry:
    """One operation; without `operation` it is only about to start. `validation` is what the memory is compared with in
    wait(). `own`: its future answers for it."""

    __slots__ = ("number", "operation", "memory", "validation", "own")

    def __init__(self, number, memory, validation, own):
        self.number, self.operation, self.memory, self.validation, self.own = number, None, memory, validation, own

    def done(self):
        return self.operation is not None and self.operation.done()

    def error(self):
        """What wait() reports of it."""
        return None if self.own else with_label(self.operation.error(), self.memory)


class Pending:
    """Any thread may use it, and so may a signal's handler and a finalizer that find their thread in one of the methods
    here: what is taken from the two queues is taken in one step, and by one of them."""

    # Entries that are looked at, and stay, for each that starts: all are seen again before twice as many have started.
    _LOOKS = 2

    def __init__(self):
        self._lock = threading.RLock()
        self._entries = collections.deque()
        self._failures = collections.deque()   # (number, OSError)
        self._numbers = itertools.count(1)

    def start(self, memory, validation, own, begin):
        """Calls begin(), which returns the operation. The memory is here before that: no exception of a signal's
        handler parts them."""
        self.forget_done()
        with self._lock:
            entry = Entry(next(self._numbers), memory, validation, own)
            self._entries.append(entry)
        try:
            entry.operation = begin()
        except OSError as error:
            self._take(entry)
            raise with_label(error, memory)
        except (TypeError, ValueError):
            self._take(entry)
            raise
        return entry.operation

    def collect(self):
        """Lets go of all that is done: (errors in the order of their start, what is to be validated)."""
        with self._lock:
            done = [entry for entry in list(self._entries) if entry.done() and self._take(entry)]
            failures = []
            with contextlib.suppress(IndexError):
                while True:
                    failures.append(self._failures.popleft())
        done.sort(key=lambda entry: entry.number)
        validations = []
        for entry in done:
            error = entry.error()
            if error is not None:
                failures.append((entry.number, error))
                continue
            finish = entry.memory.finish
            if finish is not None and entry.operation.error() is None:
                finish()
            if entry.validation is not None:
                validations.append((entry.memory, *entry.validation))
        return [error for _, error in sorted(failures, key=lambda failure: failure[0])], validations

    def forget_done(self):
        """Lets go of the memory of what is done and has nothing left to do with it."""
        with self._lock:
            looks = self._LOOKS
            with contextlib.suppress(IndexError):
                while looks:
                    if not self._forget(self._entries[0]):
                        self._entries.rotate(-1)
                        looks -= 1

    def _forget(self, entry):
        """False when it has to stay."""
        if not entry.done():
            return False
        error = entry.error()
        if error is None and entry.operation.error() is None:
            if entry.validation is not None or entry.memory.finish is not None:
                return False
        if self._take(entry) and error is not None:
            self._failures.append((entry.number, error))
        return True

    def _take(self, entry):
        """False when somebody else took it."""
        with self._lock, contextlib.suppress(ValueError):
            self._entries.remove(entry)
            return True
        return False
