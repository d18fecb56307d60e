# SPDX-License-Identifier: Apache-2.0
"""Reads the log of the device-mapper target log-writes, and builds the images that a power cut may leave.

The format is that of Linux, drivers/md/dm-log-writes.c: a superblock, then entries of one sector, each followed by its
data. A write that completed before a flush is logged before that flush.
"""

import dataclasses
import os
import struct

SECTOR = 512
MAGIC = 0x6A736677736872
FLUSH, FUA, DISCARD, MARK = 1, 2, 4, 8
SUPERBLOCK = struct.Struct("<QQQI")   # magic, version, entries, sector size
ENTRY = struct.Struct("<QQQQ")        # sector, sectors, flags, length of the data of a mark


@dataclasses.dataclass(frozen=True)
class Entry:
    """One request. `data` is the position of its bytes in the log."""

    offset: int
    length: int
    flags: int
    data: int
    mark: str = ""


def read_log(path):
    """Returns the entries of a log.

    Args:
        path: Image of the log device.

    Raises:
        ValueError: It is not a log of version 1.
    """
    with open(path, "rb") as log:
        magic, version, count, sector = SUPERBLOCK.unpack(log.read(SUPERBLOCK.size))
        if magic != MAGIC or version != 1:
            raise ValueError(f"{path} is not a log of log-writes, version 1")
        position, entries = sector, []
        for _ in range(count):
            log.seek(position)
            block, blocks, flags, mark_length = ENTRY.unpack(log.read(ENTRY.size))
            mark = log.read(mark_length).rstrip(b"\0").decode() if flags & MARK else ""
            position += sector
            length = blocks * sector
            entries.append(Entry(block * sector, length, flags, position, mark))
            if not flags & DISCARD:
                position += length
    return entries


class Image:
    """The content of a device, brought forward through the entries of a log."""

    def __init__(self, path, log):
        self.path = path
        self.device = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self.log = os.open(log, os.O_RDONLY | os.O_CLOEXEC)

    def close(self):
        os.close(self.device)
        os.close(self.log)

    def apply(self, entry, kept=None):
        """Performs a request. `kept` limits a torn write to its first bytes, a multiple of the sector size."""
        length = entry.length if kept is None else min(kept, entry.length)
        if entry.flags & DISCARD:
            # The content of discarded blocks is undefined; zeros are one possibility.
            self.write(entry.offset, bytes(min(length, 1 << 20)))
        elif length:
            self.write(entry.offset, os.pread(self.log, length, entry.data))

    def write(self, offset, data):
        done = 0
        while done < len(data):
            done += os.pwrite(self.device, data[done:], offset + done)


def unflushed(entries, cut):
    """The entries before `cut` that need not be on the device: those after the last flush, except FUA writes."""
    start = max((i + 1 for i in range(cut) if entries[i].flags & FLUSH), default=0)
    return start, [i for i in range(start, cut) if not entries[i].flags & (FUA | MARK)]
