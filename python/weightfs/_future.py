# SPDX-License-Identifier: Apache-2.0
"""The future of one read or write."""

import asyncio
import concurrent.futures
import math

from weightfs import _native, _process
from weightfs._process import check_process


class Future:
    """One operation under way. It has the methods of concurrent.futures.Future, and bytes; and `await` works. It is
    none of that module's own: concurrent.futures.wait() does not take it.

    The memory of the tensor stays alive until the operation is done, also when `data` or set_() give the tensor other
    memory. It must not be resized until then (resize_()), and what changes in it meanwhile may be in the file or not. A
    GPU's tensor that is not contiguous is filled by the first of done(), wait() and result() that finds it done, on the
    stream that is current there. Callbacks come from a thread that does I/O (or from the thread that adds one when the
    operation is done already): they must be quick, may start operations, and may not wait for one."""

    __slots__ = ("_started", "_memory", "_let_go", "_outcome", "_process", "__weakref__")

    def __init__(self, operation, memory, let_go):
        """let_go() makes its handle forget what is done."""
        self._started, self._memory, self._let_go = operation, memory, let_go
        self._outcome, self._process = None, _process.pid

    @property
    def _operation(self):
        check_process(self._process)
        return self._started

    @property
    def nbytes(self):
        """Bytes of the whole operation."""
        return self._operation.size()

    @property
    def bytes_done(self):
        """Bytes transferred so far."""
        return self._operation.transferred()

    def done(self):
        return self._operation.done() and self._settled()

    def running(self):
        return not self._operation.done()

    def cancelled(self):
        return self._operation.cancelled()

    def cancel(self):
        """Asks it to stop; what the kernel is doing still ends. False when it is done already. Only `cancelled()`, once
        it is done, says whether it was stopped: the last bytes may have been on their way."""
        return self._operation.cancel()

    def wait(self, timeout=None):
        """Waits for the end, whatever it is; False when `timeout` seconds passed before."""
        if _native.Operation.in_callback() and not self._operation.done():
            raise RuntimeError("a callback of an operation cannot wait for an operation: it would deadlock")
        if timeout is not None and math.isnan(timeout):
            raise ValueError("timeout is nan: it must be a number of seconds")
        return self._operation.wait(timeout) and self._settled()

    def exception(self, timeout=None):
        """The OSError it failed with, or None. TimeoutError, and concurrent.futures.CancelledError."""
        if not self.wait(timeout):
            raise TimeoutError(f"not done after {timeout} s")
        if self._operation.cancelled():
            raise concurrent.futures.CancelledError
        if self._outcome is None:
            self._outcome = with_label(self._operation.error(), self._memory)
        return self._outcome

    def result(self, timeout=None):
        """The number of bytes, or the exception raised."""
        error = self.exception(timeout)
        if error is not None:
            raise error
        return self.nbytes

    def add_done_callback(self, function):
        """Calls function(future) once it is done."""
        self._operation.on_done(lambda: function(self))

    def _settled(self):
        """True. After a read into a GPU's tensor that is not one run of memory its bytes are put where they belong."""
        finish = self._memory.finish
        if finish is not None and self._operation.error() is None:
            finish()
        # Nothing of it stays with a future that is kept.
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
                pass  # the loop is closed: nobody waits any more

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
    """Adds what the memory was to an OSError of the native side."""
    if error is not None:
        error.shape = tuple(memory.shape)
        error.strerror = f"{error.strerror} ({memory.label})"
    return error
