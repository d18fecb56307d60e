"""The asynchronous operations of a handle, whose memory has to stay until they are done."""

import collections
import threading

from weightfs._future import with_label


class Entry:
    """One operation; without `operation` it is only about to start. `validation` is what the memory is compared with in
    wait(). `own`: its future answers for it."""

    __slots__ = ("number", "operation", "memory", "validation", "own")

    def __init__(self, memory, validation, own):
        self.number, self.operation, self.memory, self.validation, self.own = 0, None, memory, validation, own

    def done(self):
        return self.operation is not None and self.operation.done()

    def error(self):
        """What wait() reports of it."""
        return None if self.own else with_label(self.operation.error(), self.memory)


class Pending:
    """Any thread may use it."""

    # Entries that are looked at, and stay, for each that starts: all are seen again before twice as many have started.
    _LOOKS = 2

    def __init__(self):
        self._lock = threading.Lock()
        self._entries = collections.deque()
        self._failures = []   # (number, OSError)
        self._started = 0

    def start(self, memory, validation, own, begin):
        """Calls begin(), which returns the operation. The memory is here before that: no exception of a signal's handler
        parts them."""
        self._forget_done()
        entry = Entry(memory, validation, own)
        with self._lock:
            self._started += 1
            entry.number = self._started
            self._entries.append(entry)
        try:
            entry.operation = begin()
        except OSError as error:
            self._remove(entry)
            raise with_label(error, memory)
        except (TypeError, ValueError):
            self._remove(entry)
            raise
        return entry.operation

    def collect(self):
        """Lets go of all that is done: (errors in the order of their start, what is to be validated)."""
        with self._lock:
            done, left = [], collections.deque()
            for entry in self._entries:
                (done if entry.done() else left).append(entry)
            self._entries = left
            failures, self._failures = self._failures, []
        done.sort(key=lambda entry: entry.number)
        validations = []
        for entry in done:
            error = entry.error()
            if error is not None:
                failures.append((entry.number, error))
                continue
            if entry.memory.finish is not None and entry.operation.error() is None:
                entry.memory.finish()
            if entry.validation is not None:
                validations.append((entry.memory, *entry.validation))
        return [error for _, error in sorted(failures, key=lambda failure: failure[0])], validations

    def _forget_done(self):
        """Lets go of the memory of what is done and has nothing left to do with it."""
        with self._lock:
            looks = self._LOOKS
            while looks and self._entries:
                if self._forget(self._entries[0]):
                    self._entries.popleft()
                else:
                    self._entries.rotate(-1)
                    looks -= 1

    def _forget(self, entry):
        if not entry.done():
            return False
        error = entry.error()
        if error is not None:
            self._failures.append((entry.number, error))
            return True
        return entry.validation is None and (entry.memory.finish is None or entry.operation.error() is not None)

    def _remove(self, entry):
        with self._lock:
            self._entries.remove(entry)
