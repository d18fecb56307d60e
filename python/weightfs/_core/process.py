# SPDX-License-Identifier: Apache-2.0
"""A handle and its operations belong to the process that created it."""

import errno
import os
import threading

pid = os.getpid()   # cached, so that no operation needs a system call for it
lock = threading.RLock()   # of what a process creates once; another one in a forked child, where it would stay locked


def _after_fork():
    global pid, lock
    pid, lock = os.getpid(), threading.RLock()


os.register_at_fork(after_in_child=_after_fork)


def check_process(process, what="handle"):
    """PermissionError (EPERM) in any other process: in a forked child, no thread would ever release the copies of the
    locks."""
    if pid != process:
        raise PermissionError(errno.EPERM,
                              f"this {what} belongs to the process that forked this one; create a new {what} here")
