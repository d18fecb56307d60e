# SPDX-License-Identifier: Apache-2.0
"""The future of an operation on one step, whose exception is raised once."""

import asyncio
import concurrent.futures

from weightfs import _process
from weightfs._process import check_process


class Outcome(concurrent.futures.Future):
    """The outcome of one operation of a manager, which can be awaited but not canceled. Any thread may use it, but not
    a forked child. `step` is the number of the step."""

    def __init__(self, step):
        super().__init__()
        self.step, self._process, self._error_seen = step, _process.pid, False
        self.set_running_or_notify_cancel()

    def exception(self, timeout=None):
        """The exception that the operation failed with, or None. Raises concurrent.futures.TimeoutError."""
        check_process(self._process, "manager")
        error = super().exception(timeout)
        self._error_seen = True
        return error

    def result(self, timeout=None):
        """Returns the result, or raises the exception of the operation."""
        error = self.exception(timeout)
        if error is not None:
            raise error
        return super().result()

    def raise_unseen(self):
        """Waits for the operation. Raises its exception if nobody has asked for it yet."""
        check_process(self._process, "manager")
        concurrent.futures.wait([self])
        if not self._error_seen:
            self.result()

    def failed_unseen(self):
        """Whether it is done, and failed with an exception that nobody has asked for yet."""
        return self.done() and not self._error_seen and super().exception() is not None

    def __await__(self):
        return asyncio.wrap_future(self).__await__()
