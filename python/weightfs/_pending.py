# SPDX-License-Identifier: Apache-2.0
"""The asynchronous operations of a handle or reader. Their memory must stay until they are done."""

import collections
import contextlib
import itertools
import threading

from weightfs._future import Future


class Pending:
    """Keeps the futures of operations until they are done. Thread-safe. Signal handlers and finalizers may also call
    it, even while their thread is inside one of its methods: each removal from a queue is one atomic step."""

    # Number of futures examined per started operation, so that all are examined before twice as many have started.
    _LOOKS = 2

    def __init__(self):
        self._lock = threading.RLock()
        self._futures = collections.deque()
        self._failed = collections.deque()   # futures of wait()
        self.report = None   # after the close, takes a list of the failed futures that take_done() did not find
        self._numbers = itertools.count(1)

    def start(self, memory, begin, waited=None):
        """Calls begin(), which returns the native operation, and returns its future. The memory is registered before
        that, so that an exception in a signal handler cannot separate the two.

        waited: None if the program gets the future. Otherwise wait() reports the operation, and this is what wait()
        compares its memory with: the file and the offset, or an empty tuple."""
        self.forget_done()
        future = Future(None, memory, self.forget_done if waited is None else _nothing)
        future._waited, future._log_due = waited, waited is None
        with self._lock:
            future._number = next(self._numbers)
            self._futures.append(future)
        try:
            future._operation = begin()
        except (OSError, TypeError, ValueError):
            self._take(future)
            raise
        # After any other exception, such as MemoryError, it may have begun: the memory stays until the handle ends.
        return future

    def take_done(self):
        """Forgets all operations that are done, and returns the futures of wait() in the order of their start."""
        done = [future for future in list(self._futures) if _ended(future)]
        for future in done:
            if future._memory.finish is not None:
                future.done()   # an exception of a signal handler leaves it to the next call
        with self._lock:
            taken = [future for future in done if self._take(future)]
            with contextlib.suppress(IndexError):
                while True:
                    taken.append(self._failed.popleft())
        return sorted((future for future in taken if future._waited is not None), key=lambda future: future._number)

    def under_way(self):
        """Forgets the operations that are done. Returns whether another one may still use its memory."""
        left = [future for future in list(self._futures) if not self._forget(future)]
        return not all(map(_ended, left))

    def wait(self):
        """Waits for the operations under way, and forgets them."""
        for future in list(self._futures):
            if future._operation is not None:
                future._operation.wait(None)
                self._forget(future)

    def forget_unknown(self):
        """Called when nothing uses any memory any more: releases that of operations whose start raised an exception."""
        for future in list(self._futures):
            if future._operation is None:
                self._take(future)

    def forget_done(self):
        """Releases the memory of operations that are done and that wait() does not compare."""
        with self._lock:
            looks = self._LOOKS
            while looks and (future := self._first()) is not None:
                if not self._forget(future):
                    self._futures.rotate(-1)
                    looks -= 1

    def _first(self):
        try:
            return self._futures[0]
        except IndexError:
            return None

    def _forget(self, future):
        """Returns False if the future must stay."""
        if not _ended(future):
            return False
        failed = future._operation.error() is not None
        if not failed and (future._waited or future._memory.finish is not None):
            return False
        reported = failed and future._waited is not None
        if reported:
            future._waited = ()   # wait() compares no operation that failed
            future.done()   # releases the memory; before the removal, because a signal handler may raise an exception
        if self._take(future) and reported:
            if self.report is None:
                self._failed.append(future)
            else:
                self.report([future])
        return True

    def _take(self, future):
        """Returns False if another thread or handler took the future."""
        with self._lock:
            try:
                self._futures.remove(future)
            except ValueError:
                return False
            if future._log_due and future._operation is not None:
                future._forgotten()
            return True


def _ended(future):
    return future._operation is not None and future._operation.done()


def _nothing():
    """Of an operation of wait(): only wait() and the handle's next operation forget it."""
