"""A pool without space: the write that does not fit fails, nothing else is harmed, deleting gives the space back, and
df is right all the time."""

import errno
import os

import pytest

from harness.filesystems import wait_until
from harness.tree import digests

MIB = 1 << 20
# What a file may take beyond its bytes, and what statfs may be late by: a few blocks of metadata.
SLACK = 256 << 10


def available(directory):
    status = os.statvfs(directory)
    assert status.f_bavail <= status.f_bfree <= status.f_blocks
    return status.f_bavail * status.f_frsize


def gives_back(directory, expected):
    """Whether that much becomes available. The kernel reports the close of a file a moment after close(2) returned, and
    an unlinked file lives until then."""
    return wait_until(lambda: available(directory) >= expected, limit=10)


def errno_of(function, *arguments):
    try:
        function(*arguments)
        return 0
    except OSError as error:
        return error.errno


def write_file(path, data):
    with open(path, "wb", buffering=0) as stream:
        view = memoryview(data)
        while view:
            view = view[stream.write(view[:MIB]):]


def fill(path, piece):
    """Writes until nothing fits any more; returns the bytes that were written."""
    written = 0
    with open(path, "wb", buffering=0) as stream:
        while True:
            try:
                written += stream.write(piece)
            except OSError as error:
                assert error.errno == errno.ENOSPC
                return written


@pytest.fixture
def small(factory):
    return factory.mount(factory.store("64M"))


def test_write_that_does_not_fit_fails_and_nothing_else_is_harmed(small):
    for index in range(10):
        write_file(small.path / f"kept-{index}", os.urandom(MIB + index * 1001))
    before, free = digests(small.path), available(small.path)
    written = fill(small.path / "large", os.urandom(MIB))
    assert free - 2 * MIB <= written <= free + SLACK
    assert available(small.path) <= MIB + SLACK
    assert (small.path / "large").stat().st_size == written
    small.remount()
    now = digests(small.path)
    now.pop("large")
    assert now == before and (small.path / "large").stat().st_size == written
    (small.path / "large").unlink()
    assert gives_back(small.path, free - SLACK)
    small.fsck()


def test_space_comes_back_at_once_again_and_again(small):
    free = available(small.path)
    for turn in range(8):
        written = fill(small.path / "large", os.urandom(MIB))
        assert written >= free - 2 * MIB - SLACK, f"turn {turn}: only {written} of {free} could be written"
        os.unlink(small.path / "large")
        assert gives_back(small.path, free - SLACK), turn
    small.fsck()


def test_df_follows_every_write_and_delete(small):
    free = available(small.path)
    sizes = [4096, 100_000, MIB, 5 * MIB + 1, 8 * MIB, 3000]
    for index, size in enumerate(sizes):
        before = available(small.path)
        write_file(small.path / str(index), os.urandom(size))
        assert size - SLACK <= before - available(small.path) <= size + SLACK, "in memory"
        if index % 2:
            os.sync()
            assert size - SLACK <= before - available(small.path) <= size + SLACK, "on the device"
    small.remount()
    assert sum(sizes) - SLACK <= free - available(small.path) <= sum(sizes) + SLACK
    for index in range(len(sizes)):
        (small.path / str(index)).unlink()
    assert gives_back(small.path, free - SLACK)
    small.fsck()


def test_full_pool_still_deletes_renames_and_truncates(small):
    (small.path / "a").write_bytes(b"a" * 5000)
    written = fill(small.path / "large", os.urandom(MIB))
    with open(small.path / "large", "ab", buffering=0) as stream:
        while errno_of(stream.write, b"x" * 4096) == 0:
            pass
    assert (small.path / "a").read_bytes() == b"a" * 5000
    os.rename(small.path / "a", small.path / "b")
    (small.path / "b").chmod(0o600)
    os.truncate(small.path / "large", written // 2)
    write_file(small.path / "c", os.urandom(MIB))
    (small.path / "b").unlink()
    (small.path / "large").unlink()
    small.remount()
    assert os.listdir(small.path) == ["c"] or sorted(os.listdir(small.path)) == ["c", "lost+found"]
    small.fsck()


def test_overwriting_in_a_full_pool_keeps_old_or_new(small):
    """Every overwrite needs space for a moment; one that is refused leaves the old bytes."""
    old = os.urandom(8 * MIB)
    write_file(small.path / "model", old)
    fill(small.path / "large", os.urandom(MIB))
    with open(small.path / "model", "r+b", buffering=0) as stream:
        number = errno_of(stream.write, b"n" * (4 * MIB))
        assert number in (0, errno.ENOSPC)
        synced = errno_of(os.fsync, stream.fileno())
        assert synced in (0, errno.ENOSPC)
    small.remount()
    data = (small.path / "model").read_bytes()
    assert len(data) == 8 * MIB and data[4 * MIB:] == old[4 * MIB:]
    # The kernel may cut a write into requests, each of which is written whole or not at all.
    for start in range(0, 4 * MIB, 4096):
        assert data[start:start + 4096] in (old[start:start + 4096], b"n" * 4096), start
    small.fsck()


def test_fallocate_takes_all_or_nothing(small):
    free = available(small.path)
    descriptor = os.open(small.path / "file", os.O_RDWR | os.O_CREAT)
    assert errno_of(os.posix_fallocate, descriptor, 0, free + 4 * MIB) == errno.ENOSPC
    os.ftruncate(descriptor, 0)
    os.posix_fallocate(descriptor, 0, free - 4 * MIB)
    assert available(small.path) <= 4 * MIB + SLACK
    # What was allocated can be written, whatever else is going on.
    fill(small.path / "other", os.urandom(MIB))
    for offset in range(0, free - 4 * MIB, 4 * MIB):
        os.pwrite(descriptor, b"x" * 65536, offset)
    os.fsync(descriptor)
    os.close(descriptor)
    small.fsck()


def test_many_small_files_until_the_pool_is_full(small):
    count = 0
    while True:
        try:
            write_file(small.path / f"{count:06}", b"s" * 30_000)
            count += 1
        except OSError as error:
            assert error.errno == errno.ENOSPC
            break
    assert count > 1000
    small.remount()
    for index in range(0, count, 101):
        assert (small.path / f"{index:06}").read_bytes() == b"s" * 30_000
    for name in os.listdir(small.path):
        if name != "lost+found":
            os.unlink(small.path / name)
    assert gives_back(small.path, 48 * MIB)
    small.fsck()


def test_pool_of_two_tebibytes(factory, weightfs_only):
    """Its file is sparse: what counts is that nothing is proportional to its size."""
    mount = factory.mount(factory.store("2T"))
    status = os.statvfs(mount.path)
    assert 0.97 * 2**41 <= status.f_blocks * status.f_frsize <= 2**41
    assert status.f_bavail * status.f_frsize >= 0.96 * 2**41
    data = os.urandom(9 * MIB)
    write_file(mount.path / "model", data)
    descriptor = os.open(mount.path / "huge", os.O_RDWR | os.O_CREAT)
    os.posix_fallocate(descriptor, 0, 1 << 40)
    os.pwrite(descriptor, b"deep inside", 1 << 39)
    os.close(descriptor)
    assert available(mount.path) < 2**40 + 2**39
    mount.remount()
    assert (mount.path / "model").read_bytes() == data
    assert (mount.path / "huge").stat().st_blocks * 512 >= 1 << 40
    with open(mount.path / "huge", "rb") as stream:
        assert os.pread(stream.fileno(), 11, 1 << 39) == b"deep inside"
        assert os.pread(stream.fileno(), 1000, 1 << 38) == bytes(1000)
    os.unlink(mount.path / "huge")
    assert gives_back(mount.path, 0.96 * 2**41)
    mount.fsck()
