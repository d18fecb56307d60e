# SPDX-License-Identifier: Apache-2.0
"""A handle and its operations belong to the process that created it."""

import errno
import os

pid = os.getpid()   # cached, so that no operation needs a system call for it


def _after_fork():
    global pid
    pid = os.getpid()


os.register_at_fork(after_in_child=_after_fork)


def check_process(process, what="handle"):
    """PermissionError (EPERM) in any other process: in a forked child, no thread would ever release the copies of the
    locks."""
    if pid != process:
        raise PermissionError(errno.EPERM,
                              f"this {what} belongs to the process that forked this one; create a new {what} here")
