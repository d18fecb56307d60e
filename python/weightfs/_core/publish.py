# SPDX-License-Identifier: Apache-2.0
"""Publications: directories of a mount that are complete, durable and immutable."""

from __future__ import annotations

import datetime
import errno
import typing

from weightfs import _native
from weightfs._core.arguments import path_name
from weightfs._core.types import Path


class Publication(typing.NamedTuple):
    """A published directory.

    Attributes:
        version: an int below 2**63.
        id: 32 hexadecimal digits, random, different for each publication.
        time: when it was published (UTC).
        files: number of regular files.
        bytes: their sizes together."""

    version: int
    id: str
    time: datetime.datetime
    files: int
    bytes: int


def made_publication(version, number, time_ns, files, size):
    time = datetime.datetime.fromtimestamp(time_ns / 1e9, datetime.timezone.utc)
    return Publication(version, number.hex(), time, files, size)


def publish(directory: Path, version: int | None = None) -> Publication:
    """Publishes a directory of a weightfs mount with everything below it, in one commit: when this returns, its files
    are complete and durable, and every change of them, of their names and of their attributes fails with
    PermissionError, also for root. A crash before leaves a directory that is not published. A directory that is
    published already keeps its publication, which is returned. Close the files first.

    Args:
        directory: its path.
        version: an int from 1 to 2**63 - 1, such as the number of the step; None: the time as YYYYMMDDhhmmss.
    Returns:
        a Publication.
    Raises:
        OSError: nothing has changed. ETXTBSY: a file is open for writing; EBUSY: a part is published already; EEXIST:
            published with another version; EMLINK: a file has another name outside; EPERM: of another user;
            EOPNOTSUPP: not on a weightfs mount. The message names the file."""
    return made_publication(*_native.publish(path_name(directory), version))


def unpublish(directory: Path) -> None:
    """Reverts publish().

    Raises:
        OSError: ENODATA: the directory was not published by itself; ETXTBSY: a program has a file of it open or
            mapped, which the kernel reads from hot memory."""
    _native.unpublish(path_name(directory))


def publication(directory: Path) -> Publication | None:
    """Returns the Publication of a directory, or None if it was not published by itself."""
    try:
        return made_publication(*_native.publication(path_name(directory)))
    except OSError as error:
        if error.errno in (errno.ENODATA, errno.EOPNOTSUPP):
            return None
        raise
