# SPDX-License-Identifier: Apache-2.0
"""Holes: SEEK_DATA and SEEK_HOLE, fallocate in its modes, very large sparse files, copies that keep holes."""

import errno
import os

import pytest

from harness import needs, process
from harness.syscalls import (FALLOC_COLLAPSE, FALLOC_INSERT, FALLOC_KEEP_SIZE, FALLOC_PUNCH_HOLE, FALLOC_ZERO_RANGE,
                              errno_of, fallocate)

MIB = 1 << 20


def open_new(path):
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)


def data_runs(descriptor):
    """[(start, end)] of all data, found by SEEK_DATA and SEEK_HOLE."""
    size, offset, runs = os.fstat(descriptor).st_size, 0, []
    while offset < size:
        try:
            start = os.lseek(descriptor, offset, os.SEEK_DATA)
        except OSError as error:
            assert error.errno == errno.ENXIO
            break
        offset = os.lseek(descriptor, start, os.SEEK_HOLE)
        runs.append((start, offset))
    return runs


def test_data_that_is_not_written_yet_counts_as_blocks(work):
    """A program like `tar --sparse` takes a file without blocks for one hole. The kernel keeps the number."""
    descriptor = open_new(work / "file")
    os.pwrite(descriptor, b"x" * 65536, 0)
    os.fchmod(descriptor, 0o640)
    for when in ("in memory", "on the device"):
        assert os.fstat(descriptor).st_blocks * 512 == 65536, when
        os.fsync(descriptor)
    os.close(descriptor)


def test_data_and_holes_are_told_apart(mount, work):
    descriptor = open_new(work / "file")
    for start in (1, 5, 9):
        os.pwrite(descriptor, b"x" * MIB, start * MIB)
    os.ftruncate(descriptor, 12 * MIB)
    expected = [(start * MIB, (start + 1) * MIB) for start in (1, 5, 9)]
    for when in ("in memory", "on the device"):
        assert data_runs(descriptor) == expected, when
        os.fsync(descriptor)
    assert os.fstat(descriptor).st_blocks * 512 == 3 * MIB
    os.close(descriptor)
    mount.remount()
    descriptor = os.open(work / "file", os.O_RDONLY)
    assert data_runs(descriptor) == expected
    assert os.lseek(descriptor, 12 * MIB - 1, os.SEEK_HOLE) == 12 * MIB - 1
    assert os.lseek(descriptor, 2 * MIB + 5, os.SEEK_HOLE) == 2 * MIB + 5
    assert os.lseek(descriptor, 5 * MIB + 5, os.SEEK_DATA) == 5 * MIB + 5
    assert errno_of(os.lseek, descriptor, 12 * MIB, os.SEEK_DATA) == errno.ENXIO
    assert errno_of(os.lseek, descriptor, 12 * MIB, os.SEEK_HOLE) == errno.ENXIO
    assert errno_of(os.lseek, descriptor, 10 * MIB, os.SEEK_DATA) == errno.ENXIO
    assert errno_of(os.lseek, descriptor, -1, os.SEEK_DATA) in (errno.ENXIO, errno.EINVAL)
    os.close(descriptor)


def test_punched_hole_gives_space_back(mount, work):
    descriptor = open_new(work / "file")
    expected = bytearray(os.urandom(8 * MIB))
    os.pwrite(descriptor, expected, 0)
    os.fsync(descriptor)
    fallocate(descriptor, FALLOC_PUNCH_HOLE | FALLOC_KEEP_SIZE, 2 * MIB - 100, 4 * MIB + 200)
    expected[2 * MIB - 100:6 * MIB + 100] = bytes(4 * MIB + 200)
    assert os.fstat(descriptor).st_size == 8 * MIB
    assert os.fstat(descriptor).st_blocks * 512 <= 4 * MIB + 8192
    os.close(descriptor)
    mount.remount()
    assert (work / "file").read_bytes() == expected


@pytest.mark.parametrize("keep", [True, False], ids=["keep-size", "grow"])
def test_zeroed_range_reads_as_zeros(mount, work, keep):
    descriptor = open_new(work / "file")
    os.pwrite(descriptor, b"x" * MIB, 0)
    fallocate(descriptor, FALLOC_ZERO_RANGE | (FALLOC_KEEP_SIZE if keep else 0), MIB // 2 + 3, MIB)
    os.close(descriptor)
    mount.remount()
    data = (work / "file").read_bytes()
    assert len(data) == (MIB if keep else MIB // 2 + 3 + MIB)
    assert data == (b"x" * (MIB // 2 + 3)).ljust(len(data), b"\0")


def test_allocation_beyond_the_end_is_kept(mount, work):
    descriptor = open_new(work / "file")
    os.pwrite(descriptor, b"head", 0)
    fallocate(descriptor, FALLOC_KEEP_SIZE, 0, 4 * MIB)
    assert os.fstat(descriptor).st_size == 4 and os.fstat(descriptor).st_blocks * 512 >= 4 * MIB
    os.ftruncate(descriptor, 4)
    os.pwrite(descriptor, b"tail", 4 * MIB - 4)
    os.close(descriptor)
    mount.remount()
    assert (work / "file").read_bytes() == b"head" + bytes(4 * MIB - 8) + b"tail"


def test_allocated_space_holds_zeros_until_it_is_written(mount, work):
    descriptor = open_new(work / "file")
    fallocate(descriptor, 0, 0, 6 * MIB)
    os.pwrite(descriptor, b"y" * 5000, 3 * MIB + 7)
    assert os.fstat(descriptor).st_size == 6 * MIB
    os.close(descriptor)
    mount.remount()
    expected = bytearray(6 * MIB)
    expected[3 * MIB + 7:3 * MIB + 5007] = b"y" * 5000
    assert (work / "file").read_bytes() == expected


def test_unsupported_modes_are_refused_and_change_nothing(work):
    descriptor = open_new(work / "file")
    expected = os.urandom(MIB)
    os.pwrite(descriptor, expected, 0)
    assert errno_of(fallocate, descriptor, FALLOC_PUNCH_HOLE, 0, 4096) == errno.EOPNOTSUPP
    for mode in (FALLOC_COLLAPSE, FALLOC_INSERT):
        if errno_of(fallocate, descriptor, mode, 0, 4096) == 0:
            fallocate(descriptor, FALLOC_INSERT if mode == FALLOC_COLLAPSE else FALLOC_COLLAPSE, 0, 4096)
            os.pwrite(descriptor, expected[:4096], 0)
    assert os.pread(descriptor, MIB, 0) == expected
    os.close(descriptor)


def test_file_of_one_tebibyte(mount, work):
    size, places = 1 << 40, [0, 4095, 1 << 20, (1 << 32) - 3, 123_456_789_012, (1 << 40) - 9]
    descriptor = open_new(work / "file")
    os.ftruncate(descriptor, size)
    for place in places:
        os.pwrite(descriptor, f"at{place % 997:06}".encode()[:9], place)
    os.close(descriptor)
    mount.remount()
    descriptor = os.open(work / "file", os.O_RDONLY)
    assert os.fstat(descriptor).st_size == size and os.fstat(descriptor).st_blocks * 512 < MIB
    for place in places[2:]:
        assert os.pread(descriptor, 8, place) == f"at{place % 997:06}".encode()[:9]
    assert os.pread(descriptor, 100, 500 << 30) == bytes(100)
    assert len(data_runs(descriptor)) >= 4
    os.close(descriptor)
    os.truncate(work / "file", 1 << 41)
    assert (work / "file").stat().st_size == 1 << 41


def test_writes_in_any_order_make_the_same_file(mount, work):
    import random
    expected, order = os.urandom(4 * MIB + 77), list(range(0, 4 * MIB + 77, 9973))
    random.Random(6).shuffle(order)
    descriptor = open_new(work / "file")
    for start in order:
        os.pwrite(descriptor, expected[start:start + 9973], start)
    os.close(descriptor)
    mount.remount()
    assert (work / "file").read_bytes() == expected


def test_copy_file_range_between_and_within_files(mount, work):
    source, expected = open_new(work / "source"), os.urandom(3 * MIB + 11)
    os.pwrite(source, expected, 0)
    target = open_new(work / "target")
    done = 0
    while count := os.copy_file_range(source, target, 1 << 30, done, done):
        done += count
    assert done == len(expected)
    assert os.copy_file_range(source, target, 5000, 100, 2 * MIB + 1) == 5000
    assert os.copy_file_range(source, source, 4096, 0, MIB) == 4096
    assert errno_of(os.copy_file_range, source, source, 4096, 0, 100) == errno.EINVAL
    assert os.copy_file_range(source, target, 10, len(expected), 0) == 0
    os.close(source)
    os.close(target)
    mount.remount()
    copy = bytearray(expected)
    copy[2 * MIB + 1:2 * MIB + 5001] = expected[100:5100]
    assert (work / "target").read_bytes() == copy
    copy = bytearray(expected)
    copy[MIB:MIB + 4096] = expected[:4096]
    assert (work / "source").read_bytes() == copy


def test_copy_is_independent_of_its_source(mount, work):
    """A copy may share space, but a later write to either file must not show in the other."""
    source, target = open_new(work / "source"), open_new(work / "target")
    expected = os.urandom(2 * MIB)
    os.pwrite(source, expected, 0)
    os.fsync(source)
    done = 0
    while done < len(expected):
        done += os.copy_file_range(source, target, len(expected) - done, done, done)
    os.pwrite(source, b"only here" * 1000, MIB)
    os.pwrite(target, b"only there" * 1000, 0)
    os.close(source)
    os.close(target)
    mount.remount()
    assert (work / "source").read_bytes() == expected[:MIB] + b"only here" * 1000 + expected[MIB + 9000:]
    assert (work / "target").read_bytes() == b"only there" * 1000 + expected[10000:]


@needs.program("fallocate")
def test_blocks_of_zeros_are_dug_out(work):
    path = work / "file"
    data = os.urandom(MIB) + bytes(4 * MIB) + os.urandom(MIB)
    path.write_bytes(data)
    process.run(["fallocate", "--dig-holes", path])
    assert path.read_bytes() == data
    with open(path, "rb") as stream:
        os.fsync(stream.fileno())
        assert data_runs(stream.fileno()) == [(0, MIB), (5 * MIB, 6 * MIB)]
    assert path.stat().st_blocks * 512 == 2 * MIB
