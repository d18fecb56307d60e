# SPDX-License-Identifier: Apache-2.0
"""Locks that distinguish the files of a living program from those that a killed one left: flock(2), which ends with the
program."""

import fcntl
import os

from weightfs._stream import errors_of


def lock(path):
    """Returns a descriptor that holds the lock of a file or directory. The descriptor cannot write, so a directory with
    the file can be published meanwhile.

    Raises:
        BlockingIOError: another descriptor holds the lock.
        FileNotFoundError: it is gone, or the path is another file by now.
        OSError: the filesystem has no flock(2), or the file cannot be opened."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        with errors_of(path, None):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(descriptor), os.stat(path, follow_symlinks=False)):
            raise FileNotFoundError(path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
