# SPDX-License-Identifier: Apache-2.0
"""Small filesystems for stores, and what fills them."""

import contextlib
import errno
import os

import pytest

from harness import needs, process

FREE = 60 << 20
FILESYSTEMS = [pytest.param("tmpfs"),
               pytest.param("ext4", marks=needs.loop_devices()),
               pytest.param("xfs", marks=[needs.loop_devices(), needs.program("mkfs.xfs")])]
# The size of an image, and the command that makes it. XFS needs 300 MiB.
IMAGES = {"ext4": (128 << 20, ["mkfs.ext4", "-q"]), "xfs": (320 << 20, ["mkfs.xfs", "-q"])}


@contextlib.contextmanager
def small_filesystem(factory, kind):
    """A new filesystem with about FREE bytes of free space."""
    path = factory.directory("small")
    if kind == "tmpfs":
        process.run(["mount", "-t", "tmpfs", "-o", f"size={FREE}", "none", path])
    else:
        size, make = IMAGES[kind]
        image = factory.directory("image") / "image"
        with open(image, "wb") as stream:
            stream.truncate(size)
        process.run([*make, image])
        process.run(["mount", "-o", "loop", image, path])
    fill(path, FREE, "ballast")
    yield path
    process.run(["umount", "-l", path])   # also if a failed test left a mount below it


def new_store(factory, small, size):
    """A store in the small filesystem, with its pool elsewhere."""
    pool = factory.directory("pool") / "pool"
    with open(pool, "wb") as stream:
        stream.truncate(size)
    return factory.store(devices=[pool], at=small / "store")   # the root of ext4 has lost+found


def free_bytes(path):
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize


def fill(directory, rest=0, name="filler"):
    """Uses up the free space of the filesystem but for `rest` bytes; without `rest`, every byte."""
    path = directory / name
    with open(path, "wb", buffering=0) as stream:
        if free_bytes(directory) > rest > 0:
            os.posix_fallocate(stream.fileno(), 0, free_bytes(directory) - rest)
        for piece in () if rest else (1 << 20, 4096, 1):
            with contextlib.suppress(OSError):
                while stream.write(bytes(piece)) == piece:
                    pass
    return path


def is_refused(change):
    """Whether the filesystem has no space for the change."""
    try:
        change()
    except OSError as error:
        assert error.errno == errno.ENOSPC
        return True
    return False


def until_refused(make):
    """Calls `make` with the numbers from 0, and returns the one for which there is no space."""
    for number in range(200_000):
        if is_refused(lambda: make(number)):
            return number
    pytest.fail("the catalog never became full")
