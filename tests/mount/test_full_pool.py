# SPDX-License-Identifier: Apache-2.0
"""A full pool: the write that does not fit is refused, nothing else is harmed, deleting frees the space, and df is
correct at every step."""

import errno
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from harness import needs, process
from harness.filesystems import wait_until, weightfs
from harness.syscalls import FALLOC_KEEP_SIZE, FALLOC_PUNCH_HOLE, fallocate, sync_filesystem
from harness.tree import digest, digests
from small_filesystem import small_filesystem

MIB = 1 << 20
BLOCK = 4096
POOL = 64 * MIB
# Data that is not on the device yet may take this much more than its size; other filesystems use it themselves.
SLACK = 256 << 10
# The replica of the catalog may take more space than it has reserved, for some seconds.
REPLICA = 256 << 10

# For tests that count blocks or check guarantees that only weightfs gives.
weightfs_only = pytest.mark.usefixtures("weightfs_only")


@pytest.fixture
def small(factory):
    """A mounted store of 64 MiB, which must pass fsck afterwards."""
    mount = factory.mount(factory.store("64M"))
    yield mount
    mount.fsck()


def space(mount):
    status = os.statvfs(mount.path)
    assert status.f_bavail <= status.f_bfree <= status.f_blocks
    return status


def available(mount):
    status = space(mount)
    return status.f_bavail * status.f_frsize


def gives_back(mount, expected):
    """Waits until that much space is available. The kernel reports the close of a file shortly after close(2) has
    returned, and an unlinked file exists until then."""
    return wait_until(lambda: available(mount) >= expected - REPLICA)


def becomes(mount, expected):
    """Like gives_back, and no more than that."""
    return wait_until(lambda: abs(available(mount) - expected) <= REPLICA)


def data_of(number, length):
    return random.Random(number).randbytes(length)


def write_file(path, length, number=0, synced=True):
    with open(path, "wb", buffering=0) as stream:
        data = data_of(number, length)
        while data:
            data = data[stream.write(data):]
        if synced:
            os.fsync(stream.fileno())


def fill(path, step=MIB, synced=True):
    """Writes until a write is refused. Returns the number of bytes accepted."""
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
        if synced:
            os.fsync(descriptor)
        os.close(descriptor)
    return taken


def fill_up(path):
    """Fills the pool to the last block."""
    return fill(path) + fill(path, BLOCK)


def fill_in_memory(path):
    """Like fill, but the data need not be on the device."""
    return fill(path, synced=False)


FILLINGS = pytest.mark.parametrize("filling", [fill_up, fill_in_memory], ids=lambda function: function.__name__)


@weightfs_only
def test_the_write_that_does_not_fit_is_refused_and_no_earlier_one(small):
    before = available(small)
    taken = fill(small.path / "file")
    assert taken <= before < taken + MIB, "refused though there was room, or taken though there was none"
    assert os.stat(small.path / "file").st_size == taken
    room = available(small)
    assert fill(small.path / "file", BLOCK) == room
    assert available(small) == 0


@FILLINGS
def test_accepted_data_is_complete_and_other_files_are_not_harmed(small, filling):
    for number in range(10):
        write_file(small.path / f"other-{number}", number * 300_001 + 10, number)
    others, free = digests(small.path), available(small)
    taken = filling(small.path / "big")
    assert free - 2 * MIB <= taken <= free + SLACK
    assert available(small) <= MIB + SLACK
    assert os.stat(small.path / "big").st_size == taken
    with pytest.raises(OSError) as refused:
        write_file(small.path / "late", 2 * MIB)
    assert refused.value.errno == errno.ENOSPC
    before = digests(small.path)
    assert others.items() <= before.items()
    small.remount()
    assert digests(small.path) == before
    assert os.stat(small.path / "big").st_size == taken
    os.unlink(small.path / "late")
    os.unlink(small.path / "big")
    assert gives_back(small, free - SLACK)


@weightfs_only
def test_names_can_still_be_made_changed_and_removed(small):
    write_file(small.path / "kept", 5000)
    fill_up(small.path / "big")
    assert (small.path / "kept").read_bytes() == data_of(0, 5000)
    (small.path / "folder").mkdir()
    (small.path / "folder" / "empty").touch()
    os.symlink("empty", small.path / "folder" / "link")
    os.rename(small.path / "kept", small.path / "renamed")
    (small.path / "renamed").chmod(0o600)
    os.rename(small.path / "big", small.path / "folder" / "big")
    os.truncate(small.path / "folder" / "big", 5 * MIB + 1)
    write_file(small.path / "after", 20 * MIB)
    assert os.stat(small.path / "folder" / "big").st_size == 5 * MIB + 1
    os.unlink(small.path / "renamed")
    os.unlink(small.path / "folder" / "big")
    small.remount()
    assert set(os.listdir(small.path)) - {"lost+found"} == {"after", "folder"}
    assert sorted(os.listdir(small.path / "folder")) == ["empty", "link"]


def create_until_refused(folder):
    """Creates empty files until the pool has no space for their names. Returns how many there are."""
    folder.mkdir()
    for number in range(1_000_000):
        try:
            (folder / f"{number:0200}").touch()
        except OSError as error:
            assert error.errno == errno.ENOSPC, error
            return number


@weightfs_only
def test_names_of_others_take_no_space_of_data_that_was_accepted(factory):
    mount = factory.mount(factory.store("64M"), "commit=60")
    with open(mount.path / "data", "wb", buffering=0) as stream:
        for number in range(56):
            assert stream.write(data_of(number, MIB)) == MIB
        assert create_until_refused(mount.path / "names") > 100
        os.fsync(stream.fileno())
    mount.remount()
    assert (mount.path / "data").read_bytes() == b"".join(data_of(number, MIB) for number in range(56))
    mount.fsck()


@weightfs_only
def test_a_file_of_many_extents_is_deleted_after_a_kill_beside_many_names(small):
    with open(small.path / "file", "wb", buffering=0) as stream:
        for number in range(2800):
            assert os.pwrite(stream.fileno(), bytes(BLOCK), 2 * number * BLOCK) == BLOCK
        os.fsync(stream.fileno())
    fresh = available(small)
    fill_up(small.path / "rest")
    assert create_until_refused(small.path / "names") > 100
    stream = open(small.path / "file", "rb")
    os.unlink(small.path / "file")
    with open(small.path / "names" / f"{0:0200}", "rb") as name:
        os.fsync(name.fileno())
    small.kill9()
    stream.close()
    small.mount()
    os.unlink(small.path / "rest")
    assert gives_back(small, fresh)


@weightfs_only
def test_a_publication_beside_many_names_leaves_nothing_immutable(small):
    folder = small.path / "folder"
    folder.mkdir()
    for number in range(2000):
        (folder / str(number)).touch()
    fill_up(small.path / "rest")
    count = create_until_refused(small.path / "names")
    for number in range(40):
        (small.path / "names" / f"{number:0200}").unlink()
    if weightfs("publish", folder, codes=(0, 1)).code == 0:
        weightfs("publish", "--undo", folder)
    for number in range(40, count):
        (small.path / "names" / f"{number:0200}").unlink()
    for number in range(2000):
        (folder / str(number)).unlink()


@weightfs_only
@pytest.mark.parametrize("state", ["synced", "appended to", "in memory"])
def test_deleting_gives_the_space_back_at_once(small, state):
    fresh = available(small)
    for turn in range(8):
        taken = fill(small.path / "file", synced=state != "in memory")
        assert taken >= fresh - MIB - REPLICA, f"in turn {turn} less fits than before"
        if state == "appended to":
            with open(small.path / "file", "ab") as stream:
                assert os.pwrite(stream.fileno(), b"not durable", taken - 11) == 11
        os.unlink(small.path / "file")
        assert becomes(small, fresh), "df does not show the space of the deleted file"


@weightfs_only
def test_truncating_and_punching_give_the_space_back_at_once(small):
    fresh = available(small)
    fill(small.path / "file")
    os.truncate(small.path / "file", 0)
    assert becomes(small, fresh)
    taken = fill(small.path / "file")
    assert taken >= fresh - MIB - REPLICA
    with open(small.path / "file", "r+b") as stream:
        fallocate(stream.fileno(), FALLOC_PUNCH_HOLE | FALLOC_KEEP_SIZE, 0, taken)
    assert becomes(small, fresh)
    assert fill(small.path / "other") >= fresh - MIB - REPLICA


@weightfs_only
def test_an_open_deleted_file_keeps_its_space_until_it_is_closed(small):
    fresh = available(small)
    fill(small.path / "file")
    with open(small.path / "file", "rb") as stream:
        before = digest(small.path / "file")
        os.unlink(small.path / "file")
        assert available(small) < MIB
        assert digest(f"/proc/self/fd/{stream.fileno()}") == before
    # The kernel sends the close without waiting for an answer. The next write that needs the space waits for it.
    assert fill(small.path / "next") >= fresh - MIB - REPLICA


@weightfs_only
def test_df_counts_every_block_that_is_written(small):
    start = space(small)
    used = 0
    for number, length in enumerate([1, 4096, 4097, 3000, 100_000, MIB, 3 * MIB + 5, 5 * MIB + 1, 8 * MIB]):
        path, before = small.path / f"file-{number}", available(small)
        write_file(path, length, number, synced=False)
        assert length - SLACK <= before - available(small) <= length + SLACK, "in memory"
        with open(path, "rb") as stream:
            sync_filesystem(stream.fileno()) if number % 2 else os.fsync(stream.fileno())
        used += -(-length // BLOCK)
        # syncfs(2) does not reach the daemon, which writes a closed file by itself.
        assert wait_until(lambda: start.f_bfree - space(small).f_bfree == used)
        now = space(small)
        assert start.f_bavail - now.f_bavail == used
        assert now.f_blocks == start.f_blocks
    used += start.f_blocks - start.f_bfree   # the replica of the catalog
    text = process.run(["df", "-B1", "--output=size,used,avail", small.path]).out.split()[-3:]
    assert [int(word) for word in text] == [start.f_blocks * BLOCK, used * BLOCK, space(small).f_bavail * BLOCK]
    small.remount()
    assert space(small).f_bfree == start.f_blocks - used
    for path in small.path.iterdir():
        path.unlink()
    assert becomes(small, start.f_bavail * start.f_frsize)


@weightfs_only
def test_df_counts_what_is_not_yet_on_the_device(small):
    start = available(small)
    with open(small.path / "file", "wb", buffering=0) as stream:
        for number in range(1, 9):
            stream.write(data_of(number, MIB))
            assert start - available(small) >= number * MIB


@weightfs_only
def test_fallocate_that_does_not_fit_changes_nothing(small):
    write_file(small.path / "file", 10_000)
    before = available(small)
    with open(small.path / "file", "r+b") as stream:
        for mode in (0, FALLOC_KEEP_SIZE):
            for length in (before + 4 * MIB, POOL):
                with pytest.raises(OSError) as refused:
                    fallocate(stream.fileno(), mode, 0, length)
                assert refused.value.errno == errno.ENOSPC
        assert os.fstat(stream.fileno()).st_size == 10_000
    assert available(small) == before
    assert (small.path / "file").read_bytes() == data_of(0, 10_000)


@pytest.mark.parametrize("most, step", [(8 * MIB, 300_000), (POOL, 300_000), (POOL, 4 * MIB)])
def test_preallocated_space_can_be_written_in_a_full_pool(small, most, step):
    free = available(small)
    reserved = min(most, free - 4 * MIB)
    expected = bytearray(reserved)
    with open(small.path / "reserved", "w+b", buffering=0) as stream:
        os.posix_fallocate(stream.fileno(), 0, reserved)
        assert available(small) <= free - reserved + SLACK
        fill_up(small.path / "rest")
        for start in range(0, reserved, step):
            piece = data_of(start, min(300_000, reserved - start))
            assert os.pwrite(stream.fileno(), piece, start) == len(piece)
            expected[start:start + len(piece)] = piece
        os.fsync(stream.fileno())
    small.remount()
    assert (small.path / "reserved").read_bytes() == expected


@weightfs_only
@pytest.mark.parametrize("step", [BLOCK, 256 * 1024, MIB])
def test_a_file_larger_than_the_free_space_can_be_overwritten(small, step):
    """New data needs new blocks until a commit frees the old ones. With little free space, this takes many commits."""
    length = 16 * MIB
    write_file(small.path / "file", length, 1)
    with open(small.path / "rest", "wb") as stream:
        os.posix_fallocate(stream.fileno(), 0, available(small) - 4 * MIB)
    data = data_of(2, length)
    with open(small.path / "file", "r+b", buffering=0) as stream:
        for start in range(0, length, step):
            assert os.pwrite(stream.fileno(), data[start:start + step], start) == step
        os.fsync(stream.fileno())
    small.remount()
    assert (small.path / "file").read_bytes() == data


@FILLINGS
@pytest.mark.parametrize("step", [65536, 4 * MIB])
def test_an_overwrite_that_is_refused_leaves_the_old_bytes(small, filling, step):
    write_file(small.path / "file", 8 * MIB, 1)
    filling(small.path / "rest")
    old, new = data_of(1, 8 * MIB), data_of(2, 4 * MIB)
    expected = bytearray(old)
    with open(small.path / "file", "r+b", buffering=0) as stream:
        for start in range(0, len(new), step):
            try:
                count = os.pwrite(stream.fileno(), new[start:start + step], start)
            except OSError as error:
                assert error.errno == errno.ENOSPC
            else:
                expected[start:start + count] = new[start:start + count]
        os.fsync(stream.fileno())
    assert (small.path / "file").read_bytes() == expected
    small.remount()
    assert (small.path / "file").read_bytes() == expected


@weightfs_only
def test_a_mapping_in_a_full_pool_never_loses_what_was_synced(small):
    """If there is no space for a mapped page, its msync fails (or the process is killed), and the old bytes stay."""
    write_file(small.path / "file", MIB, 1)
    fill_up(small.path / "rest")
    script = ("import mmap, sys\n"
              "stream = open(sys.argv[1], 'r+b')\n"
              "mapping = mmap.mmap(stream.fileno(), 0)\n"
              "mapping[:] = b'x' * len(mapping)\n"
              "mapping.flush()\n")
    finished = process.run([sys.executable, "-c", script, small.path / "file"], codes=None, on_hang=small.kill)
    small.remount()
    content = (small.path / "file").read_bytes()
    if finished.code == 0:
        assert content == b"x" * MIB
    else:
        old = data_of(1, MIB)
        for start in range(0, MIB, BLOCK):
            assert content[start:start + BLOCK] in (old[start:start + BLOCK], b"x" * BLOCK)


def test_many_small_files_until_the_pool_is_full(small):
    length, count = 30_000, 0
    with pytest.raises(OSError) as refused:
        while True:
            write_file(small.path / f"{count:06}", length, count, synced=False)
            count += 1
    assert refused.value.errno == errno.ENOSPC
    assert count > 1000
    small.remount()
    for number in range(0, count, 101):
        assert (small.path / f"{number:06}").read_bytes() == data_of(number, length)
    for path in small.path.glob("0*"):
        path.unlink()
    assert gives_back(small, 48 * MIB)


@weightfs_only
def test_a_pool_of_two_tebibytes(factory):
    """Uses a sparse file. The test shows that no cost is proportional to the pool's size."""
    size = 2 << 40
    mount = factory.mount(factory.store("2T"))
    start = space(mount)
    assert size - (2 << 30) < start.f_blocks * BLOCK <= size
    assert start.f_bavail * BLOCK > size - (2 << 30)
    write_file(mount.path / "file", 9 * MIB + 1, 1)
    with open(mount.path / "large", "w+b", buffering=0) as stream:
        os.posix_fallocate(stream.fileno(), 0, 1 << 40)
        assert os.pwrite(stream.fileno(), b"deep inside", 1 << 39) == 11
        assert os.pwrite(stream.fileno(), b"end", (1 << 40) - 3) == 3
        assert os.pread(stream.fileno(), 6, (1 << 40) - 6) == b"\0\0\0end"
        # A write that is not yet under writeback also reserves space for itself, because it may have to be copied.
        os.fsync(stream.fileno())
    used = (1 << 40) // BLOCK + 9 * MIB // BLOCK + 1
    assert start.f_bavail - space(mount).f_bavail == used
    mount.remount()
    assert start.f_bavail - space(mount).f_bavail == used
    assert (mount.path / "file").read_bytes() == data_of(1, 9 * MIB + 1)
    assert os.stat(mount.path / "large").st_blocks * 512 >= 1 << 40
    with open(mount.path / "large", "rb") as stream:
        assert os.pread(stream.fileno(), 11, 1 << 39) == b"deep inside"
        assert os.pread(stream.fileno(), 1000, 1 << 38) == bytes(1000)
        assert os.pread(stream.fileno(), 6, (1 << 40) - 6) == b"\0\0\0end"
    with pytest.raises(OSError) as refused, open(mount.path / "more", "wb") as stream:
        os.posix_fallocate(stream.fileno(), 0, 1 << 40)
    assert refused.value.errno == errno.ENOSPC
    os.unlink(mount.path / "large")
    os.unlink(mount.path / "file")
    assert becomes(mount, start.f_bavail * start.f_frsize)
    mount.fsck()


WRITER = """
import os, sys
descriptor = os.open(sys.argv[1], os.O_WRONLY)
try:
    os.write(descriptor, bytes(1 << 20))
except OSError as error:
    print(error.errno)
"""


@weightfs_only
@needs.root
@needs.loop_devices()
@needs.program("fsfreeze")
def test_a_write_that_waits_for_space_delays_no_look_ups(factory):
    """It commits all files first, which takes as long as the device. The only receiver serves others meanwhile."""
    with small_filesystem(factory, "ext4") as below:
        with open(below / "pool", "wb") as pool:
            os.posix_fallocate(pool.fileno(), 0, 48 * MIB)
        mount = factory.mount(factory.store(devices=[below / "pool"]), "threads=1")
        (mount.path / "empty").touch()
        fill_up(mount.path / "full")
        process.run(["fsfreeze", "--freeze", below])
        try:
            os.chmod(mount.path / "empty", 0o600)
            writer = subprocess.Popen([sys.executable, "-c", WRITER, mount.path / "empty"], text=True,
                                      stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            waits = Path(f"/proc/{writer.pid}/wchan")
            assert wait_until(lambda: "request_wait" in waits.read_text())
            process.run(["stat", mount.path / "empty", mount.path / "full"], limit=20)
            assert writer.poll() is None
        finally:
            process.run(["fsfreeze", "--unfreeze", below])
        assert process.finish(writer).out == f"{errno.ENOSPC}\n"
        mount.fsck()
        mount.close()


@weightfs_only
@needs.root
def test_a_device_without_space_is_a_reported_error(factory):
    """The pool is a sparse file on a full filesystem. This differs from a full pool, in which writers wait for closes.
    """
    small = factory.directory("small")
    process.run(["mount", "-t", "tmpfs", "-o", "size=40m", "none", small])
    try:
        with open(small / "pool", "wb") as pool:
            pool.truncate(POOL)
        mount = factory.mount(factory.store(devices=[small / "pool"]))
        path, old, new = mount.path / "model", data_of(1, 16 * MIB), data_of(2, 16 * MIB)
        write_file(path, len(old), 1)
        with open(small / "filler", "wb", buffering=0) as filler, pytest.raises(OSError):
            while True:
                filler.write(bytes(BLOCK))
        file, errors = os.open(path, os.O_WRONLY), []
        for at in [*range(0, len(new), MIB), None]:
            try:
                os.fsync(file) if at is None else os.pwrite(file, new[at:at + MIB], at)
            except OSError as error:
                errors.append(error.errno)
        assert errors and set(errors) == {errno.EIO}
        assert path.read_bytes() == old
        (small / "filler").unlink()
        assert os.pwrite(file, new[:MIB], 0) == MIB
        os.fsync(file)
        os.close(file)
        mount.remount()
        assert path.read_bytes() == new[:MIB] + old[MIB:]
        mount.fsck()
        mount.close()
    finally:
        process.run(["umount", "-l", small])
