# SPDX-License-Identifier: Apache-2.0
"""What a save checks beforehand (direct="require": nothing is created beside a missing mount), and what explains the
error afterwards (a published directory)."""

import contextlib
import errno
import os
import re
import shlex

from weightfs._publish import publication

_TYPES = ("fuse.weightfs", "fuseblk.weightfs")
_UNKNOWN = ["", "", "", "", "?", "-", "an unknown filesystem", "?"]   # in no table that this process may read


def check_mounted(path, chosen):
    """Checks that a path is on a weightfs mount, or would be if it existed.

    Args:
        chosen: a handle, or its `direct`. Without "require" nothing is checked.

    Raises:
        OSError: it is not. The text has the filesystem that it is on, and the next step."""
    if getattr(chosen, "_direct", chosen) != "require":
        return
    at = target = os.path.realpath(os.fsdecode(path))
    while (found := _mount_of(at)) is None:
        at = os.path.dirname(at)
    kind, source, point = found
    if kind not in _TYPES:
        raise OSError(errno.ENOTTY, f"on no weightfs mount, which direct=\"require\" needs, but on {kind} ({source}, "
                                    f"mounted on {point}); mount the store first: weightfs mount STORE DIR", target)


def _mount_of(path):
    """(type, source, mount point) of the filesystem of an existing file. None: there is no such file."""
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        with open(f"/proc/self/fdinfo/{descriptor}", encoding="ascii") as facts:
            number = re.search("mnt_id:\\s*([0-9]+)", facts.read() + "mnt_id: 0")[1]
    finally:
        os.close(descriptor)
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as mounts:
        # "36 35 8:1 / /mnt/my\040disk rw shared:1 - ext4 /dev/sda1 rw"
        fields = next((line.split(" ") for line in mounts if line.startswith(f"{number} ")), _UNKNOWN)
    kind, source = fields[fields.index("-") + 1:][:2]
    return kind, *(re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), text) for text in (source, fields[4]))


@contextlib.contextmanager
def explaining_publication(path):
    """An EPERM in the block names the published directory that causes it, and the command that reverts it. `path` is
    what the block changes."""
    try:
        yield
    except PermissionError as error:
        if error.errno != errno.EPERM:
            raise
        at = os.path.realpath(os.fsdecode(path))
        while (found := _publication_of(at)) is None:
            if at == (at := os.path.dirname(at)):
                raise
        raise PermissionError(
            errno.EPERM, f"{at} is published (version {found.version}), so nothing in it can change; save to another "
                         f"directory, or first run: weightfs publish --undo {shlex.quote(at)}",
                         os.fsdecode(path)) from None


def _publication_of(path):
    with contextlib.suppress(OSError):
        return publication(path)
    return None
