# SPDX-License-Identifier: Apache-2.0
"""The asynchronous operations of a handle. Their memory must stay until they are done."""

import collections
import contextlib
import itertools
import threading

from weightfs._future import with_label


class Entry:
    """One operation; `operation` is None until it has started. wait() compares the memory with `validation`. `own`: the
    operation's future reports its errors."""

    __slots__ = ("number", "operation", "memory", "validation", "own")

    def __init__(self, number, memory, validation, own):
        self.number, self.operation, self.memory, self.validation, self.own = number, None, memory, validation, own

    def done(self):
        return self.operation is not None and self.operation.done()

    def is_unseen(self):
        future = self.memory.future
        return self.own and future is not None and future() is None and not self.done()

    def error(self):
        """The error that wait() reports for this operation."""
        return None if self.own else with_label(self.operation.error(), self.memory)


class Pending:
    """Thread-safe. Signal handlers and finalizers may also call it, even while their thread is inside one of its
    methods: each removal from a queue is one atomic step."""

    # Number of pending entries examined per started one, so that all are examined before twice as many have started.
    _LOOKS = 2

    def __init__(self):
        self._lock = threading.RLock()
        self._entries = collections.deque()
        self._failures = collections.deque()   # (number, OSError)
        self._numbers = itertools.count(1)

    def start(self, memory, validation, own, begin):
        """Calls begin(), which returns the operation. The memory is registered before that, so that an exception in a
        signal handler cannot separate the two."""
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
        # After any other exception, such as MemoryError, it may have begun: the memory stays with the handle.
        return entry.operation

    def collect(self):
        """Releases all operations that are done. Returns (errors in the order of their start, entries to validate)."""
        with self._lock:
            done = sorted((entry for entry in list(self._entries) if entry.done()), key=lambda entry: entry.number)
        for entry in done:
            finish = entry.memory.finish
            if finish is not None and entry.operation.error() is None:
                try:
                    finish()   # an exception of a signal handler leaves it to the next call
                except Exception:
                    self._take(entry)
                    raise
        failures, validations = [], []
        with self._lock:
            done = [entry for entry in done if self._take(entry)]
            with contextlib.suppress(IndexError):
                while True:
                    failures.append(self._failures.popleft())
        for entry in done:
            error = entry.error()
            if error is not None:
                failures.append((entry.number, error))
            elif entry.validation is not None:
                validations.append((entry.memory, *entry.validation))
        return [error for _, error in sorted(failures, key=lambda failure: failure[0])], validations

    def unseen(self):
        """The operations under way whose futures the program has dropped."""
        with self._lock:
            return [entry for entry in list(self._entries) if entry.is_unseen()]

    def under_way(self):
        """Whether an operation may still use its memory."""
        return not all(entry.done() for entry in list(self._entries))

    def wait(self):
        """Waits for the operations under way."""
        for entry in list(self._entries):
            if entry.operation is not None:
                entry.operation.wait(None)

    def forget_done(self):
        """Releases the memory of operations that are done and need no validation."""
        with self._lock:
            looks = self._LOOKS
            with contextlib.suppress(IndexError):
                while looks:
                    if not self._forget(self._entries[0]):
                        self._entries.rotate(-1)
                        looks -= 1

    def _forget(self, entry):
        """Returns False if the entry must stay."""
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
        """Returns False if another thread or handler took the entry."""
        with self._lock, contextlib.suppress(ValueError):
            self._entries.remove(entry)
            return True
        return False
