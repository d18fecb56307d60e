# SPDX-License-Identifier: Apache-2.0
"""A handle, and what is under way by it, belongs to the process that made it."""

import errno
import os

pid = os.getpid()   # without asking the kernel for each operation


def _after_fork():
    global pid
    pid = os.getpid()


os.register_at_fork(after_in_child=_after_fork)


def check_process(process):
    """PermissionError (EPERM) in another process than that: in a child it forked, whose copies of the locks of its
    threads nobody gives back."""
    if pid != process:
        raise PermissionError(errno.EPERM,
                              "this handle belongs to the process that forked this one; create a new handle here")
