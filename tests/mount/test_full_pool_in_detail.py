"""A pool that is full: the write that does not fit is refused, nothing else is harmed, deleting gives the space back,
and what df says is true at every step."""

import errno
import os
import random

import pytest

from harness import process
from harness.filesystems import weightfs
from harness.syscalls import FALLOC_KEEP_SIZE, FALLOC_PUNCH_HOLE, fallocate
from harness.tree import digest

pytestmark = pytest.mark.usefixtures("weightfs_only")

MIB = 1 << 20
BLOCK = 4096
POOL = 64 * MIB


@pytest.fixture
def small(factory):
    """A store of 64 MiB, mounted. fsck must find nothing afterwards."""
    mount = factory.mount(factory.store("64M"))
    yield mount
    mount.fsck()


def space(mount):
    return os.statvfs(mount.path)


def data_of(number, length):
    return random.Random(number).randbytes(length)


def write_file(path, length, number=0):
    with open(path, "wb", buffering=0) as stream:
        data = data_of(number, length)
        while data:
            data = data[stream.write(data):]
        os.fsync(stream.fileno())


def fill(path, step=MIB):
    """Writes until a write is refused. Returns how many bytes were taken."""
    taken = 0
    piece = data_of(step, step)
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
    try:
        while True:
            count = os.write(descriptor, piece)
            assert count > 0
            taken += count
    except OSError as error:
        assert error.errno == errno.ENOSPC, error
    finally:
        os.fsync(descriptor)
        os.close(descriptor)
    return taken


def fill_up(path):
    """To the last block."""
    return fill(path) + fill(path, BLOCK)


def test_the_write_that_does_not_fit_is_refused_and_no_earlier_one(small):
    before = space(small)
    taken = fill(small.path / "file")
    assert taken <= before.f_bavail * BLOCK < taken + MIB, "refused though there was room, or taken though there was none"
    assert os.stat(small.path / "file").st_size == taken
    room = space(small).f_bavail * BLOCK
    assert fill(small.path / "file", BLOCK) == room
    assert space(small).f_bavail == 0


def test_what_was_taken_is_whole_after_a_remount(small):
    taken = fill_up(small.path / "file")
    before = digest(small.path / "file")
    small.remount()
    assert os.stat(small.path / "file").st_size == taken
    assert digest(small.path / "file") == before


def test_other_files_are_not_harmed(small):
    for number in range(5):
        write_file(small.path / f"other-{number}", number * 700_001 + 10, number)
    before = {path: digest(path) for path in small.path.iterdir()}
    fill_up(small.path / "big")
    with pytest.raises(OSError) as refused:
        write_file(small.path / "late", MIB)
    assert refused.value.errno == errno.ENOSPC
    assert {path: digest(path) for path in before} == before
    small.remount()
    assert {path: digest(path) for path in before} == before


def test_names_can_still_be_made_and_removed(small):
    fill_up(small.path / "big")
    (small.path / "folder").mkdir()
    (small.path / "folder" / "empty").touch()
    os.symlink("empty", small.path / "folder" / "link")
    os.rename(small.path / "big", small.path / "folder" / "big")
    os.truncate(small.path / "folder" / "big", 5 * MIB + 1)
    write_file(small.path / "after", 20 * MIB)
    assert os.stat(small.path / "folder" / "big").st_size == 5 * MIB + 1


@pytest.mark.parametrize("synced", [True, False])
def test_deleting_gives_the_space_back_at_once(small, synced):
    fresh = space(small)
    for number in range(6):
        taken = fill(small.path / "file")
        assert taken >= fresh.f_bavail * BLOCK - MIB, f"in turn {number} less fits than before"
        if not synced:
            with open(small.path / "file", "ab") as stream:
                assert os.pwrite(stream.fileno(), b"not durable", taken - 11) == 11
        os.unlink(small.path / "file")
        assert space(small).f_bavail == fresh.f_bavail, "df does not show the space of the deleted file"


def test_truncating_and_punching_give_the_space_back_at_once(small):
    fresh = space(small)
    fill(small.path / "file")
    os.truncate(small.path / "file", 0)
    assert space(small).f_bavail == fresh.f_bavail
    taken = fill(small.path / "file")
    assert taken >= fresh.f_bavail * BLOCK - MIB
    with open(small.path / "file", "r+b") as stream:
        fallocate(stream.fileno(), FALLOC_PUNCH_HOLE | FALLOC_KEEP_SIZE, 0, taken)
    assert space(small).f_bavail == fresh.f_bavail
    assert fill(small.path / "other") >= fresh.f_bavail * BLOCK - MIB


def test_an_open_deleted_file_keeps_its_space_until_it_is_closed(small):
    fresh = space(small)
    fill(small.path / "file")
    with open(small.path / "file", "rb") as stream:
        before = digest(small.path / "file")
        os.unlink(small.path / "file")
        assert space(small).f_bavail * BLOCK < MIB
        assert digest(f"/proc/self/fd/{stream.fileno()}") == before
    # The kernel tells the filesystem of a close without waiting for it; the next write that needs the space does wait.
    assert fill(small.path / "next") >= fresh.f_bavail * BLOCK - MIB


def test_df_counts_every_block_that_is_written(small):
    start = space(small)
    used = 0
    for number, length in enumerate([1, 4096, 4097, 100_000, MIB, 3 * MIB + 5]):
        write_file(small.path / f"file-{number}", length, number)
        used += -(-length // BLOCK)
        now = space(small)
        assert start.f_bfree - now.f_bfree == used
        assert start.f_bavail - now.f_bavail == used
        assert now.f_blocks == start.f_blocks
    text = process.run(["df", "-B1", "--output=size,used,avail", small.path]).out.split()[-3:]
    assert [int(word) for word in text] == [start.f_blocks * BLOCK, used * BLOCK, space(small).f_bavail * BLOCK]
    small.remount()
    assert space(small).f_bavail == start.f_bavail - used


def test_df_counts_what_is_not_yet_on_the_device(small):
    start = space(small)
    with open(small.path / "file", "wb", buffering=0) as stream:
        for number in range(1, 9):
            stream.write(data_of(number, MIB))
            assert start.f_bavail - space(small).f_bavail >= number * MIB // BLOCK


def test_fallocate_that_does_not_fit_changes_nothing(small):
    write_file(small.path / "file", 10_000)
    before = space(small)
    with open(small.path / "file", "r+b") as stream:
        for mode in (0, FALLOC_KEEP_SIZE):
            with pytest.raises(OSError) as refused:
                fallocate(stream.fileno(), mode, 0, POOL)
            assert refused.value.errno == errno.ENOSPC
        assert os.fstat(stream.fileno()).st_size == 10_000
    assert space(small).f_bavail == before.f_bavail
    assert (small.path / "file").read_bytes() == data_of(0, 10_000)


def test_preallocated_space_can_be_written_in_a_full_pool(small):
    with open(small.path / "reserved", "wb", buffering=0) as stream:
        os.posix_fallocate(stream.fileno(), 0, 8 * MIB)
        fill_up(small.path / "rest")
        data = data_of(3, 8 * MIB)
        for start in range(0, len(data), 300_000):
            piece = data[start:start + 300_000]
            assert os.pwrite(stream.fileno(), piece, start) == len(piece)
        os.fsync(stream.fileno())
    small.remount()
    assert (small.path / "reserved").read_bytes() == data


@pytest.mark.parametrize("step", [BLOCK, 256 * 1024, MIB])
def test_a_file_larger_than_the_room_left_can_be_overwritten(small, step):
    """New data needs new blocks until the commit that frees the old ones: with some room left, many commits do it."""
    length = 16 * MIB
    write_file(small.path / "file", length, 1)
    with open(small.path / "rest", "wb") as stream:
        os.posix_fallocate(stream.fileno(), 0, (space(small).f_bavail * BLOCK) - 4 * MIB)
    data = data_of(2, length)
    with open(small.path / "file", "r+b", buffering=0) as stream:
        for start in range(0, length, step):
            assert os.pwrite(stream.fileno(), data[start:start + step], start) == step
        os.fsync(stream.fileno())
    small.remount()
    assert (small.path / "file").read_bytes() == data


def test_an_overwrite_that_is_refused_leaves_the_old_bytes(small):
    write_file(small.path / "file", 4 * MIB, 1)
    fill_up(small.path / "rest")
    old, new = data_of(1, 4 * MIB), data_of(2, 4 * MIB)
    expected = bytearray(old)
    with open(small.path / "file", "r+b", buffering=0) as stream:
        for start in range(0, 4 * MIB, 65536):
            try:
                count = os.pwrite(stream.fileno(), new[start:start + 65536], start)
            except OSError as error:
                assert error.errno == errno.ENOSPC
            else:
                expected[start:start + count] = new[start:start + count]
        os.fsync(stream.fileno())
    assert (small.path / "file").read_bytes() == expected
    small.remount()
    assert (small.path / "file").read_bytes() == expected


def test_a_mapping_in_a_full_pool_never_loses_what_was_synced(small):
    """A mapped page that finds no room fails its msync (or kills its process), and the old bytes stay."""
    write_file(small.path / "file", MIB, 1)
    fill_up(small.path / "rest")
    script = ("import mmap, sys\n"
              "stream = open(sys.argv[1], 'r+b')\n"
              "mapping = mmap.mmap(stream.fileno(), 0)\n"
              "mapping[:] = b'x' * len(mapping)\n"
              "mapping.flush()\n")
    finished = process.run([os.sys.executable, "-c", script, small.path / "file"], codes=None, on_hang=small.kill)
    small.remount()
    content = (small.path / "file").read_bytes()
    if finished.code == 0:
        assert content == b"x" * MIB
    else:
        old = data_of(1, MIB)
        for start in range(0, MIB, BLOCK):
            assert content[start:start + BLOCK] in (old[start:start + BLOCK], b"x" * BLOCK)


def test_a_pool_of_two_tebibytes(factory):
    size = 2 << 40
    mount = factory.mount(factory.store("2T"))
    start = space(mount)
    assert size - (2 << 30) < start.f_blocks * BLOCK <= size
    assert start.f_bavail * BLOCK > size - (2 << 30)
    write_file(mount.path / "file", 3 * MIB + 1, 1)
    with open(mount.path / "large", "w+b", buffering=0) as stream:
        os.posix_fallocate(stream.fileno(), 0, 1 << 40)
        assert os.pwrite(stream.fileno(), b"end", (1 << 40) - 3) == 3
        assert os.pread(stream.fileno(), 6, (1 << 40) - 6) == b"\0\0\0end"
        # A write that is not yet on its way holds room of its own, for it may have to be copied.
        os.fsync(stream.fileno())
    assert start.f_bavail - space(mount).f_bavail == (1 << 40) // BLOCK + 3 * MIB // BLOCK + 1
    mount.remount()
    assert start.f_bavail - space(mount).f_bavail == (1 << 40) // BLOCK + 3 * MIB // BLOCK + 1
    assert (mount.path / "file").read_bytes() == data_of(1, 3 * MIB + 1)
    with open(mount.path / "large", "rb") as stream:
        assert os.pread(stream.fileno(), 6, (1 << 40) - 6) == b"\0\0\0end"
    with pytest.raises(OSError) as refused, open(mount.path / "more", "wb") as stream:
        os.posix_fallocate(stream.fileno(), 0, 1 << 40)
    assert refused.value.errno == errno.ENOSPC
    os.unlink(mount.path / "large")
    os.unlink(mount.path / "file")
    assert space(mount).f_bavail == start.f_bavail
    mount.fsck()


def test_a_store_smaller_than_the_least_is_refused(local):
    finished = weightfs("format", local / "store", "--size", "1M", codes=(1,))
    assert "too small" in finished.err
    assert not (local / "store").exists()
