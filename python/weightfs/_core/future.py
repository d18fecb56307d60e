# SPDX-License-Identifier: Apache-2.0
"""The future of everything that goes on in the background, and the operations of a handle or reader."""

from __future__ import annotations

import asyncio
import builtins
import collections
import concurrent.futures
import contextlib
import errno
import itertools
import logging
import math
import os
import sys
import threading
import weakref
from collections.abc import Callable, Generator
from concurrent.futures import _base
from typing import Any, TypeVar

from weightfs import _native
from weightfs._core import process
from weightfs._core.process import check_process

_Result = TypeVar("_Result")
log = logging.getLogger("weightfs")
_canceled: "weakref.WeakSet[Future]" = weakref.WeakSet()   # reads and writes whose handle or reader was closed
os.register_at_fork(after_in_child=_canceled.clear)


def log_unasked():
    """Called at exit, when every operation has ended."""
    for future in list(_canceled):
        future._log_cancellation()


class TimeoutError(*dict.fromkeys((concurrent.futures.TimeoutError, builtins.TimeoutError))):  # noqa: A001
    """A timeout. Before Python 3.11 these are two classes, and programs catch either."""


class Future(concurrent.futures.Future[_Result]):
    """One operation in the background: a read or write of a handle or reader, a push or pull, a save of a checkpoint.
    A concurrent.futures.Future, which can also be awaited: wait(), as_completed() and asyncio.wrap_future() accept it.
    Any thread may use it, but not a forked child.

    The operation has begun, so cancel() only asks it to end, and returns False if it cannot. done() turns true when it
    has ended, and cancelled() says whether it was canceled. A read or write whose cancel() returned True never
    succeeds; a push or pull may have been complete.

    Of a read or write, the memory of the tensor stays alive until the operation is done, even if the tensor is given
    other memory (`data`, set_()). The tensor must not be resized until then (resize_()). Changes made to it during a
    write may or may not be in the file. A GPU tensor that is not contiguous is filled by the first call of done(),
    wait() or result() that finds the operation done, on the stream that is current in that call; if it has callbacks or
    is waited for by other functions, before these see it done.

    A read or write that close() or the exit of the interpreter has canceled is logged as a warning when its future is
    dropped, and at the latest at exit, unless the program has asked for the outcome: by result(), exception(), await,
    or a cancelled() that returned True.

    Callbacks run on a thread for callbacks, or on one that finds the operation done. They may start operations, and
    must not wait for one."""

    def __init__(self, operation: Any = None, memory: Any = None, let_go: Callable[[], object] | None = None, *,
                 stop: Callable[[], bool] | None = None) -> None:
        """Of a native operation (which Pending.start() sets later), or of one whose thread calls set_result() or
        set_exception().

        let_go() makes the handle forget operations that are done. stop() asks the operation to end, and returns whether
        it can; None: it cannot."""
        self._process, self._operation, self._memory, self._let_go = process.pid, operation, memory, let_go
        self._stop, self._waited = stop, None   # see Pending.start
        self._nbytes = None if memory is None else memory.nbytes
        self._log_due = memory is not None
        self._reports, self._asked = memory is None, False
        # What the base class would set, but for the condition: most operations of wait() never need one.
        self._state, self._result, self._exception = _base.PENDING, None, None
        self._waiters, self._done_callbacks = [], []

    def __del__(self) -> None:
        # In a forked child the operation belongs to the parent. At interpreter exit, its outcome has been logged.
        if getattr(self, "_log_due", False) and self._process == process.pid and not sys.is_finalizing():
            self._log_cancellation()

    @property
    def nbytes(self) -> int | None:
        """The number of bytes of a whole read or write."""
        check_process(self._process, "operation")
        return self._nbytes

    @property
    def bytes_done(self) -> int | None:
        """The number of bytes read or written so far."""
        check_process(self._process, "operation")
        if self._operation is None:
            return None
        done, size = self._operation.transferred(), self._operation.size()
        # A reader's operation counts the whole blocks of its rows.
        return done if size == self._nbytes else done * self._nbytes // size

    def done(self) -> bool:
        check_process(self._process, "operation")
        if self._state == _base.PENDING and self._operation is not None and self._operation.done():
            self._settle()
        return self._state != _base.PENDING

    def running(self) -> bool:
        return not self.done()

    def cancelled(self) -> bool:
        if not self.done() or not super().cancelled():
            return False
        self._log_due = False
        return True

    def cancel(self) -> bool:
        """Asks the operation to end: what is in the kernel still completes. Returns False if it cannot be canceled, or
        is done with another outcome."""
        if self.done():
            return self.cancelled()
        stop = self._stop if self._operation is None else self._operation.cancel
        if stop is None or not stop():
            return False
        self._log_due = False
        return True

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until the operation is done, with any outcome. Returns False if `timeout` seconds pass first."""
        if timeout is not None and math.isnan(timeout):
            raise ValueError("timeout is nan: it must be a number of seconds")
        if not self.done():
            if self._operation is None:
                limit = None if timeout is None else min(timeout, threading.TIMEOUT_MAX)
                concurrent.futures.wait([self], limit)
            elif _native.Operation.in_callback():
                raise RuntimeError("a callback of an operation cannot wait for an operation: it would deadlock")
            elif self._operation.waits_for_this_thread():
                raise OSError(errno.EDEADLK, "the save_many or load_many that this signal handler interrupts has the "
                                             "file until it returns; wait after that")
            else:
                self._operation.wait(timeout)
        return self.done()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The exception that the operation failed with, or None. Raises concurrent.futures.TimeoutError, which is
        also a TimeoutError of Python, and concurrent.futures.CancelledError."""
        if not self.wait(timeout):
            raise TimeoutError(f"not done after {timeout} s")
        self._asked, self._log_due = True, False
        return super().exception()

    def result(self, timeout: float | None = None) -> _Result:
        """Returns the result, which for a read or write is the number of bytes, or raises the operation's exception."""
        self.exception(timeout)
        return super().result()

    def __await__(self) -> Generator[Any, None, _Result]:
        return asyncio.wrap_future(self).__await__()

    def __repr__(self):
        if process.pid != self._process:
            return "<weightfs.Future of another process>"
        if not self.done():
            state = "running"
        elif super().cancelled():
            state = "cancelled"
        else:
            state = "failed" if super().exception() else "finished"
        sizes = "" if self._nbytes is None else f", {self.bytes_done} of {self._nbytes} bytes"
        return f"<weightfs.Future {state}{sizes}>"

    # --- Internals ---

    @property
    def _condition(self):
        """The lock under which concurrent.futures waits for a future and adds callbacks. Only then does a native
        operation report its end: to report every end would let a thread wait for the GIL each time."""
        check_process(self._process, "operation")
        if not self._reports:
            # In this order: after an exception of a signal handler in between, the next call registers it once more.
            self._operation.on_done(self._settle)
            self._reports = True
        try:
            return self._own_condition
        except AttributeError:   # several threads may be here
            return self.__dict__.setdefault("_own_condition", threading.Condition())

    def _get_snapshot(self):
        """From Python 3.14 on, asyncio takes the outcome by this method of the base class."""
        self._asked, self._log_due = True, False
        return super()._get_snapshot()

    def _log_cancellation(self):
        """Logs once that close() or the exit of the interpreter has canceled it. The handle keeps the future until the
        operation is done, so __del__ knows the outcome."""
        if self._log_due and self._operation is not None and self._operation.cancelled():
            self._log_due = False
            log.warning("canceled by close() or at exit, and the outcome was never asked for: %s",
                        self._operation.error().strerror)

    def _forgotten(self):
        """Called when the handle has found it done."""
        if self._log_due and self._operation.cancelled():
            _canceled.add(self)

    def _failure(self):
        """The exception of a read or write that is done, or None. Of a canceled one it is an OSError."""
        error = with_label(self._operation.error(), self._memory)
        if error is None and self._state != _base.PENDING:   # the copy of a GPU tensor after a read may fail
            error = super().exception()
        return error

    def _settle(self):
        """Takes the outcome of a native operation that is done. Several threads and signal handlers may be here at
        once: the first outcome counts."""
        self._reports, memory, error = True, self._memory, self._operation.error()
        if self._operation.cancelled():
            self._set_cancelled()
        else:
            finish = memory.finish   # after a read into a GPU tensor that is not contiguous
            if finish is not None and error is None:
                try:
                    finish()
                except Exception as failure:
                    error = failure
            with contextlib.suppress(concurrent.futures.InvalidStateError):
                if error is None:
                    self.set_result(self._nbytes)
                else:
                    self.set_exception(with_label(error, memory))
        # A future that is kept must not keep the memory, unless wait() still compares it.
        if not self._waited:
            memory.owner = memory.finish = None
        self._let_go()

    def _set_cancelled(self):
        """The counterpart of set_result(), which the base class has for operations that have not begun."""
        with self._condition:
            if self._state != _base.PENDING:
                return
            self._state = _base.CANCELLED_AND_NOTIFIED
            for waiter in self._waiters:
                waiter.add_cancelled(self)
            self._condition.notify_all()
        self._invoke_callbacks()

    def _raise_unasked(self):
        """Waits for the operation. Raises its exception if nobody has asked for it yet."""
        self.wait()
        if not self._asked:
            self.result()

    def _failed_unasked(self):
        """Whether it is done, and failed with an exception that nobody has asked for yet."""
        return self.done() and not self._asked and super().exception() is not None


def with_label(error, memory):
    """Adds a description of the memory to an OSError of the native module."""
    if isinstance(error, OSError):
        error.shape = tuple(memory.shape)
        error.strerror = f"{error.strerror} ({memory.label})"
    return error


class Pending:
    """Keeps the futures of operations until they are done. Thread-safe. Signal handlers and finalizers may also call
    it, even while their thread is inside one of its methods: each removal from a queue is one atomic step."""

    # Number of futures examined per started operation, so that all are examined before twice as many have started.
    _LOOKS = 2

    def __init__(self):
        self._lock = threading.RLock()
        self._futures = collections.deque()
        self.report = None   # after the close, takes a list of the futures that take_done() did not find
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
        return sorted((future for future in taken if future._waited is not None), key=lambda future: future._number)

    def under_way(self):
        """Forgets the operations that are done. Returns whether another one may still use its memory."""
        left = [future for future in list(self._futures) if not self._forget(future)]
        return not all(map(_ended, left))

    def wait(self):
        """After the close: waits for the operations under way, and reports and forgets them."""
        for future in list(self._futures):
            if future._operation is not None:
                future._operation.wait(None)
        self.report(self.take_done())

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
        """Releases the memory of one that is done and that wait() does not compare. Returns False if it must stay."""
        if not _ended(future):
            return False
        if future._operation.error() is None:
            if future._waited or future._memory.finish is not None:
                return False
        elif future._waited is not None:   # wait() reports it, and compares no operation that failed
            future._waited = ()
            future.done()
            return False
        self._take(future)
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
