# SPDX-License-Identifier: Apache-2.0
"""The asynchronous operations of a handle. Their memory must stay until they are done."""

import collections
import contextlib
import itertools
import threading

from weightfs._future import Notice, with_label


class Entry:
    """One operation; `operation` is None until it has started. wait() compares the memory with `validation`. `notice`:
    that of the operation's future, which reports its errors; None if the operation has no future."""

    __slots__ = ("number", "operation", "memory", "validation", "notice")

    def __init__(self, number, memory, validation):
        self.number, self.operation, self.memory, self.validation = number, None, memory, validation
        self.notice = memory.notice

    def done(self):
        return self.operation is not None and self.operation.done()

    def error(self):
        """The error that wait() reports for this operation."""
        return None if self.notice is not None else with_label(self.operation.error(), self.memory)


class Pending:
    """Thread-safe. Signal handlers and finalizers may also call it, even while their thread is inside one of its
    methods: each removal from a queue is one atomic step."""

    # Number of pending entries examined per started one, so that all are examined before twice as many have started.
    _LOOKS = 2

    def __init__(self):
        self._lock = threading.RLock()
        self._entries = collections.deque()
        self._failures = collections.deque()   # (number, OSError)
        self.report = None   # after the close, takes a list of the errors that are found too late for collect()
        self._numbers = itertools.count(1)

    def start(self, memory, validation, own, begin):
        """Calls begin(), which returns the operation. The memory is registered before that, so that an exception in a
        signal handler cannot separate the two."""
        self.forget_done()
        memory.notice = Notice() if own else None
        with self._lock:
            entry = Entry(next(self._numbers), memory, validation)
            self._entries.append(entry)
        try:
            entry.operation = begin()
        except OSError as error:
            self._take(entry)
            raise with_label(error, memory)
        except (TypeError, ValueError):
            self._take(entry)
            raise
        # After any other exception, such as MemoryError, it may have begun: the memory stays until the handle ends.
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
            if entry.notice is not None:
                entry.notice.examine(entry.operation)
            if error is not None:
                failures.append((entry.number, error))
            elif entry.validation is not None:
                validations.append((entry.memory, *entry.validation))
        return [error for _, error in sorted(failures, key=lambda failure: failure[0])], validations

    def under_way(self):
        """Forgets the operations that are done. Returns whether another one may still use its memory."""
        left = [entry for entry in list(self._entries) if not self._forget(entry)]
        return not all(entry.done() for entry in left)

    def wait(self):
        """Waits for the operations under way, and forgets them."""
        for entry in list(self._entries):
            if entry.operation is not None:
                entry.operation.wait(None)
                self._forget(entry)

    def forget_unknown(self):
        """Called when nothing uses any memory any more: releases that of operations whose start raised an exception."""
        for entry in list(self._entries):
            if entry.operation is None:
                self._take(entry)

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
        if self._take(entry):
            if error is not None and self.report is not None:
                self.report([error])
            elif error is not None:
                self._failures.append((entry.number, error))
            if entry.notice is not None:
                entry.notice.examine(entry.operation)
        return True

    def _take(self, entry):
        """Returns False if another thread or handler took the entry."""
        with self._lock, contextlib.suppress(ValueError):
            self._entries.remove(entry)
            return True
        return False
