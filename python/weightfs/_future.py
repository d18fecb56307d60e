# SPDX-License-Identifier: Apache-2.0
"""The future of one read or write."""

import asyncio
import concurrent.futures
import math

from weightfs import _native, _process
from weightfs._process import check_process


class Future:
    """One asynchronous operation. It has the methods of concurrent.futures.Future, and supports `await`. It is not an
    instance of that class: concurrent.futures.wait() does not accept it.

    The memory of the tensor stays alive until the operation is done, even if the tensor is given other memory (`data`,
    set_()). The tensor must not be resized until then (resize_()). Changes made to it during a write may or may not be
    in the file. A GPU tensor that is not contiguous is filled by the first call of done(), wait() or result() that
    finds the operation done, on the stream that is current in that call. Callbacks run on an I/O thread (or, if the
    operation is already done, on the thread that adds the callback). They must be quick, may start operations, and must
    not wait for one."""

    __slots__ = ("_started", "_memory", "_let_go", "_outcome", "_process", "_nbytes", "__weakref__")

    def __init__(self, operation, memory, let_go):
        """let_go() makes the handle forget operations that are done."""
        self._started, self._memory, self._let_go = operation, memory, let_go
        self._outcome, self._process = None, _process.pid
        self._nbytes = memory.nbytes

    @property
    def _operation(self):
        check_process(self._process)
        return self._started

    @property
    def nbytes(self):
        """The number of bytes of the whole operation."""
        check_process(self._process)
        return self._nbytes

    @property
    def bytes_done(self):
        """The number of bytes transferred so far."""
        done, size = self._operation.transferred(), self._operation.size()
        # A reader's operation counts the whole blocks of its rows.
        return done if size == self._nbytes else done * self._nbytes // size

    def done(self):
        return self._operation.done() and self._settled()

    def running(self):
        return not self._operation.done()

    def cancelled(self):
        return self._operation.cancelled()

    def cancel(self):
        """Requests cancellation; transfers in the kernel still complete. Returns False if the operation is already
        done. Only `cancelled()`, once the operation is done, says whether it was canceled: its last bytes may have been
        in flight."""
        return self._operation.cancel()

    def wait(self, timeout=None):
        """Waits until the operation is done, with any outcome. Returns False if `timeout` seconds pass first."""
        if _native.Operation.in_callback() and not self._operation.done():
            raise RuntimeError("a callback of an operation cannot wait for an operation: it would deadlock")
        if timeout is not None and math.isnan(timeout):
            raise ValueError("timeout is nan: it must be a number of seconds")
        return self._operation.wait(timeout) and self._settled()

    def exception(self, timeout=None):
        """The OSError that the operation failed with, or None. Raises TimeoutError and
        concurrent.futures.CancelledError."""
        if not self.wait(timeout):
            raise TimeoutError(f"not done after {timeout} s")
        if self._operation.cancelled():
            raise concurrent.futures.CancelledError
        if self._outcome is None:
            self._outcome = with_label(self._operation.error(), self._memory)
        return self._outcome

    def result(self, timeout=None):
        """Returns the number of bytes, or raises the operation's exception."""
        error = self.exception(timeout)
        if error is not None:
            raise error
        return self.nbytes

    def add_done_callback(self, function):
        """Calls function(future) once the operation is done."""
        self._operation.on_done(lambda: function(self))

    def _settled(self):
        """Returns True. After a read into a GPU tensor that is not contiguous, first scatters the bytes into the
        tensor."""
        finish = self._memory.finish
        if finish is not None and self._operation.error() is None:
            finish()
        # A future that is kept must not keep the memory.
        self._memory.owner = self._memory.finish = None
        self._let_go()
        return True

    def __await__(self):
        loop = asyncio.get_running_loop()
        waiter = loop.create_future()

        def wake():
            if not waiter.done():
                waiter.set_result(None)

        def on_done():
            try:
                loop.call_soon_threadsafe(wake)
            except RuntimeError:
                pass  # the event loop is closed, so nothing waits for this future

        self._operation.on_done(on_done)
        try:
            yield from waiter
        except asyncio.CancelledError:
            self.cancel()
            raise
        try:
            return self.result()
        except concurrent.futures.CancelledError:
            raise asyncio.CancelledError from None

    def __repr__(self):
        if _process.pid != self._process:
            return "<weightfs.Future of another process>"
        if not self.done():
            state = "running"
        elif self.cancelled():
            state = "cancelled"
        else:
            state = "failed" if self.exception() else "finished"
        return f"<weightfs.Future {state}, {self.bytes_done} of {self.nbytes} bytes>"


def with_label(error, memory):
    """Adds a description of the memory to an OSError of the native module."""
    if error is not None:
        error.shape = tuple(memory.shape)
        error.strerror = f"{error.strerror} ({memory.label})"
    return error
