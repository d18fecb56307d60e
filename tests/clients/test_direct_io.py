# SPDX-License-Identifier: Apache-2.0
"""Users of O_DIRECT with aligned buffers: DeepSpeed's asynchronous I/O handle and its FastPersist writer."""

import mmap
import os
import random

import pytest

BLOCK = 4096


def aligned(data):
    """Returns a page-aligned buffer that contains `data`."""
    buffer = mmap.mmap(-1, max(len(data), 1))
    buffer[:len(data)] = data
    return memoryview(buffer)[:len(data)]


def write_all(descriptor, data, offset, step=1 << 20):
    for start in range(0, len(data), step):
        piece = data[start:start + step]
        assert os.pwrite(descriptor, aligned(piece), offset + start) == len(piece)


def read_direct(path):
    """Reads the whole file by aligned reads of 1 MiB; the last one is short."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        pieces, buffer = [], mmap.mmap(-1, 1 << 20)
        while got := os.preadv(descriptor, [buffer], sum(map(len, pieces))):
            pieces.append(buffer[:got])
        return b"".join(pieces)
    finally:
        os.close(descriptor)


def content(size, seed=3):
    return random.Random(seed).randbytes(size)


@pytest.mark.parametrize("size", [BLOCK, 1 << 20, 9 * (1 << 20) + 3 * BLOCK])
def test_aligned_writes_and_reads(mount, work, size):
    path, expected = work / "swap.bin", content(size)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o644)
    write_all(descriptor, expected, 0)
    assert os.fstat(descriptor).st_size == size
    os.close(descriptor)
    assert path.read_bytes() == read_direct(path) == expected
    mount.remount()
    assert read_direct(path) == path.read_bytes() == expected


def test_writes_without_truncation_keep_the_old_tail(mount, work):
    path, old, new = work / "swap.bin", content(5_000_003, 1), content(2 << 20, 2)
    path.write_bytes(old)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_DIRECT, 0o644)
    write_all(descriptor, new, 0)
    os.close(descriptor)
    assert path.stat().st_size == len(old)
    mount.remount()
    assert path.read_bytes() == new + old[len(new):]


def test_read_of_an_odd_sized_file_ends_short(mount, work):
    path, expected = work / "odd.bin", content(3_000_017)
    path.write_bytes(expected)
    assert read_direct(path) == expected
    mount.remount()
    assert read_direct(path) == expected


def persist(path, data):
    """FastPersist: writes the aligned part directly, the tail through the page cache, then the next part directly
    again."""
    whole = len(data) // BLOCK * BLOCK
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_DIRECT, 0o644)
    write_all(descriptor, data[:whole], 0)
    os.close(descriptor)
    with open(path, "ab") as stream:
        stream.write(data[whole:])
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_DIRECT)
    os.fsync(descriptor)
    os.close(descriptor)


@pytest.mark.parametrize("size", [1, BLOCK - 1, BLOCK + 1, (1 << 20) + 5, 7_777_777])
def test_fast_persist(mount, work, size):
    path, expected = work / "checkpoint.pt", content(size)
    persist(path, expected)
    assert path.read_bytes() == expected
    mount.remount()
    assert path.read_bytes() == read_direct(path) == expected
    persist(path, expected[::-1])
    assert path.read_bytes() == expected[::-1]


def test_direct_appends(mount, work):
    path, parts = work / "log.bin", [content(BLOCK * (index + 1), index) for index in range(20)]
    for part in parts:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_DIRECT, 0o644)
        assert os.write(descriptor, aligned(part)) == len(part)
        os.fsync(descriptor)
        os.close(descriptor)
    mount.remount()
    assert path.read_bytes() == b"".join(parts)


def test_direct_and_buffered_handles_see_each_other(mount, work):
    path = work / "both.bin"
    direct = os.open(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o644)
    buffered = os.open(path, os.O_RDWR)
    os.ftruncate(direct, 64 * BLOCK)
    expected, buffer = bytearray(64 * BLOCK), mmap.mmap(-1, BLOCK)
    generator = random.Random(9)
    for step in range(300):
        block, piece = generator.randrange(64), generator.randbytes(BLOCK)
        expected[block * BLOCK:(block + 1) * BLOCK] = piece
        writer, reader = (direct, buffered) if step % 2 else (buffered, direct)
        assert os.pwrite(writer, aligned(piece), block * BLOCK) == BLOCK
        assert os.preadv(reader, [buffer], block * BLOCK) == BLOCK and buffer[:] == piece, step
    os.close(direct)
    os.close(buffered)
    mount.remount()
    assert path.read_bytes() == expected


def test_many_direct_writers_of_one_file(mount, work):
    """Several ranks write their own parts of one file concurrently."""
    path, size, ranks = work / "ranks.bin", 1 << 20, 6
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    os.ftruncate(descriptor, ranks * size)
    children = []
    for rank in range(ranks):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                own = os.open(path, os.O_WRONLY | os.O_DIRECT)
                write_all(own, content(size, rank), rank * size, step=128 << 10)
                os.fsync(own)
                status = 0
            finally:
                os._exit(status)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * ranks
    os.close(descriptor)
    mount.remount()
    assert path.read_bytes() == b"".join(content(size, rank) for rank in range(ranks))
