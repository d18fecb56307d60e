# SPDX-License-Identifier: Apache-2.0
"""A store's files as specified in docs/FORMAT.md, for tests that damage them or check that they are unchanged."""

import contextlib
import json
import os
import random
import struct

from harness.crc32c import crc32c
from harness.filesystems import weightfs
from harness.tree import digest, digests

SUPERBLOCK_OFFSETS = (0, 512 << 10, 1 << 20, (1 << 20) + (512 << 10))
SUPERBLOCK_SIZE = 4096
ROOT_OFFSETS = (64 << 10, 576 << 10, 1088 << 10, 1600 << 10)   # of the log
VERSION, READ_ONLY_FEATURES, INCOMPATIBLE_FEATURES, FLAGS = (8, "<I"), (24, "<Q"), (32, "<Q"), (76, "<I")
CLEAN = 1


def patch(path, offset, data):
    with open(path, "r+b") as stream:
        stream.seek(offset)
        stream.write(data)


def read_at(path, offset, size):
    with open(path, "rb") as stream:
        stream.seek(offset)
        return stream.read(size)


def flip(path, offset, mask=0x40):
    patch(path, offset, bytes([read_at(path, offset, 1)[0] ^ mask]))


def data_of(number, length):
    return random.Random(number).randbytes(length)


def devices_of(store):
    return store.devices or [store.directory / "pool"]


def extents_of(path):
    """For a file in a mount, which is synced first: which of its bytes are at which location on which device."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
    return json.loads(weightfs("info", "--json", path).out)["extents"]


def superblocks(path):
    return [read_at(path, offset, SUPERBLOCK_SIZE) for offset in SUPERBLOCK_OFFSETS]


def superblock_is_valid(copy):
    return copy[:8] == b"WEIGHTFS" and crc32c(copy[:-4]) == struct.unpack("<I", copy[-4:])[0]


def superblock_field(copy, field):
    return struct.unpack_from(field[1], copy, field[0])[0]


def set_superblock_field(path, field, value):
    """Sets a field in all copies, with correct checksums, as another version of the program would have written it."""
    for offset in SUPERBLOCK_OFFSETS:
        copy = bytearray(read_at(path, offset, SUPERBLOCK_SIZE))
        struct.pack_into(field[1], copy, field[0], value)
        struct.pack_into("<I", copy, SUPERBLOCK_SIZE - 4, crc32c(copy[:-4]))
        patch(path, offset, copy)


def damage_superblock(path, copy):
    """Damages the middle of a copy, so that its magic number stays intact."""
    flip(path, SUPERBLOCK_OFFSETS[copy] + 84)


def state_of(*paths, but_for=()):
    state = {}
    for path in paths:
        if os.path.isdir(path):
            state[path] = {name: value for name, value in digests(path).items() if not name.startswith(but_for)}
        elif os.path.exists(path):
            state[path] = digest(path)
        else:
            state[path] = None
    return state


@contextlib.contextmanager
def unchanged(*paths, but_for=()):
    """Asserts that the block changes no file below the paths, and creates and removes none. `but_for` is a tuple: files
    whose relative path begins with one of its elements may change."""
    before = state_of(*paths, but_for=but_for)
    yield
    after = state_of(*paths, but_for=but_for)
    assert before == after, "changed: " + ", ".join(str(path) for path in before if before[path] != after[path])


def refused(*words, saying, codes=(1,), **options):
    """Asserts that the command exits with one of `codes` and prints exactly one line on standard error, which contains
    `saying`."""
    finished = weightfs(*words, codes=codes, **options)
    lines = finished.err.splitlines()
    assert len(lines) == 1, f"one line was expected: {finished!r}"
    assert lines[0].startswith("weightfs: ") and saying in lines[0], f"'{saying}' was expected: {finished!r}"
    assert finished.out == "", finished
    return lines[0]


def filled_store(factory, devices=()):
    """An unmounted store with one file."""
    made = factory.store("32M", devices=devices)
    mount = factory.mount(made)
    (mount.path / "file").write_bytes(b"content" * 1000)
    mount.umount()
    return made


def check_usable(factory, store):
    """Asserts that a store made by filled_store can be mounted, has its file, and passes fsck."""
    mount = factory.mount(store)
    assert (mount.path / "file").read_bytes() == b"content" * 1000
    mount.fsck()
