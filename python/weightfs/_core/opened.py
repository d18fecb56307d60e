# SPDX-License-Identifier: Apache-2.0
"""The lifecycle of handles and readers. The native part of each belongs to the process that created it, and is closed
before the interpreter ends."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import weakref
from typing import TYPE_CHECKING

from weightfs._core import process
from weightfs._core.future import Pending, log_unasked
from weightfs._core.process import check_process

if TYPE_CHECKING:
    from typing_extensions import Self

_all_opened: "weakref.WeakSet[Opened]" = weakref.WeakSet()
_left: "list[Pending]" = []   # of closed objects, with operations that a close in a callback has not waited for
os.register_at_fork(after_in_child=_left.clear)
_exits = False


def closes_at_exit():
    """Whether an object that is opened now will be closed before the interpreter ends. False in functions that were
    registered with atexit before weightfs was imported."""
    return not _exits


@atexit.register
def _close_all():
    global _exits
    _exits = True
    # Runs before the interpreter ends, because the threads of a handle or a reader may still call back, and program
    # threads in a call must still return.
    for opened in list(_all_opened):
        opened.close()
        if process.pid == opened._process:
            opened._opened.join()
    for pending in list(_left):
        pending.wait()
    log_unasked()


def _keep_memory(pending):
    """Keeps what such operations use, until a later call finds them done."""
    if pending not in _left:
        _left.append(pending)
    for one in list(_left):
        if not one.under_way():
            with contextlib.suppress(ValueError):   # another thread or finalizer has removed it
                _left.remove(one)
                one.report(one.take_done())


class Closing:
    """A context manager whose block ends with close()."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Opened(Closing):
    """A native object that must be closed, with its asynchronous operations. It cannot be copied or pickled, unless a
    subclass can. As thread-safe as the native object. Each subclass has _KIND and _CREATE, the noun and the verb of
    error messages."""

    def __init__(self, native):
        self._pending = Pending()
        self._process = process.pid
        self._opened = native
        _all_opened.add(self)

    def close(self) -> None:
        """Waits for the transfers in the kernel, cancels everything else and frees all resources, including leases.
        Later calls raise ValueError."""
        ended = self._opened.close()
        if process.pid == self._process:   # in a forked child, the operations and their locks belong to the parent
            if ended:
                self._pending.forget_unknown()
            self._pending.report = self._log_failures
            try:
                self._log_failures(self._pending.take_done())   # nothing will wait for them
            finally:
                _keep_memory(self._pending)

    def __del__(self) -> None:
        # At interpreter exit, the locks of an object that is still open cannot be trusted.
        if hasattr(self, "_opened") and not sys.is_finalizing():
            self.close()

    def __reduce_ex__(self, protocol):
        raise TypeError(f"a {self._KIND} cannot be copied or pickled; {self._CREATE} one in each process")

    @property
    def _native(self):
        self._check_process()
        return self._opened

    def _check_process(self):
        check_process(self._process, self._KIND)

    @staticmethod
    def _log_failures(futures):
        """Called with the operations of wait() that are done by the close(), or end after one in a callback."""
