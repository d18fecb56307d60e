# SPDX-License-Identifier: Apache-2.0
"""Bytes that change silently on the device: the block that contains them returns EIO, never wrong bytes, and everything
else stays readable."""

import errno
import json
import mmap
import os
import random
import sys

import pytest

import store_files
from harness import process
from harness.filesystems import weightfs
from harness.process import Failure
from harness.syscalls import errno_of
from store_files import extents_of

pytestmark = pytest.mark.usefixtures("weightfs_only")

BLOCK = 4096
MIB = 1 << 20
SIZE = 6 * MIB + 1234


def data_of(number, length=SIZE):
    return random.Random(number).randbytes(length)


def place_of(extents, offset):
    """The location in the pool of the byte at `offset` of a file."""
    for extent in extents:
        if extent["logical"] <= offset < extent["logical"] + extent["length"]:
            return extent["physical"] + offset - extent["logical"]
    raise AssertionError(f"no extent holds {offset}")


class Victim:
    """An unmounted store with two files; `damage` changes the bytes of a block of the first one."""

    def __init__(self, factory):
        self.mount = factory.mount(factory.store("64M"))
        self.path, self.other = self.mount.path / "victim", self.mount.path / "other"
        self.data, self.other_data = data_of(1), data_of(2)
        self.path.write_bytes(self.data)
        self.other.write_bytes(self.other_data)
        self.extents, self.inode = extents_of(self.path), os.stat(self.path).st_ino
        self.pool = self.mount.store.directory / "pool"
        self.mount.umount()

    def damage(self, offset, mask=0x01):
        place = place_of(self.extents, offset)
        assert store_files.read_at(self.pool, place, 1) == self.data[offset:offset + 1], "the block lies elsewhere"
        store_files.flip(self.pool, place, mask)

    def log(self):
        return [line for line in (self.mount.store.directory / "weightfs.log").read_text().splitlines()
                if "checksum" in line]

    def check_all_but(self, *bad_offsets):
        """Reads block by block. Blocks at `bad_offsets` must fail with EIO; the others, which are all their neighbors
        and every seventh block of the file, must be correct."""
        bad = {offset // BLOCK for offset in bad_offsets}
        near = {block + distance for block in bad for distance in range(-20, 21)}
        with open(self.path, "rb", buffering=0) as stream:
            for block in range(-(-SIZE // BLOCK)):
                start = block * BLOCK
                if block in bad:
                    assert errno_of(os.pread, stream.fileno(), BLOCK, start) == errno.EIO
                elif block in near or block % 7 == 0:
                    assert os.pread(stream.fileno(), BLOCK, start) == self.data[start:start + BLOCK], start
        assert self.other.read_bytes() == self.other_data


@pytest.fixture
def victim(factory):
    return Victim(factory)


def test_undamaged_nothing_is_reported(victim):
    victim.mount.mount()
    victim.check_all_but()
    assert victim.log() == []
    victim.mount.umount()
    weightfs("verify", victim.mount.store.directory)


@pytest.mark.parametrize("offset", [0, 100, 5 * BLOCK - 1, 2 * MIB, 3 * MIB + 17, SIZE - 1])
def test_one_changed_bit_makes_its_block_unreadable_and_no_other(victim, offset):
    victim.damage(offset)
    victim.mount.mount()
    victim.check_all_but(offset)


def test_the_log_names_the_inode_the_offset_and_the_place(victim):
    offset = 700 * BLOCK + 5
    victim.damage(offset)
    victim.mount.mount()
    with open(victim.path, "rb", buffering=0) as stream:
        assert errno_of(os.pread, stream.fileno(), 10, offset) == errno.EIO
    lines = victim.log()
    assert lines
    for word in (f"inode {victim.inode}", f"file offset {700 * BLOCK}", "device 0",
                 f"device offset {place_of(victim.extents, 700 * BLOCK)}"):
        assert all(word in line for line in lines), f"'{word}' is missing: {lines}"
    assert json.loads(weightfs("info", "--json", victim.mount.path).out)["statistics"]["checksum_errors"] > 0


def test_several_blocks_and_the_answers_of_large_reads(victim):
    bad = [BLOCK * number for number in (3, 4, 511, 512, 1000)]
    for offset in bad:
        victim.damage(offset + 9)
    victim.mount.mount()
    with open(victim.path, "rb", buffering=0) as stream:
        for start in range(0, SIZE, MIB):
            holds_bad = any(start <= offset < start + MIB for offset in bad)
            try:
                got = os.pread(stream.fileno(), MIB, start)
            except OSError as error:
                assert error.errno == errno.EIO and holds_bad
            else:
                # A read may end before the bad block, but must not pass it.
                end = min([offset - start for offset in bad if offset >= start] + [MIB])
                assert got == victim.data[start:start + len(got)] and len(got) <= end
                assert holds_bad or len(got) == min(MIB, SIZE - start)
    victim.check_all_but(*bad)


def test_a_sequential_reader_gets_what_lies_before_the_bad_block(victim):
    offset = 4 * MIB + 3 * BLOCK
    victim.damage(offset)
    victim.mount.mount()
    got = bytearray()
    with open(victim.path, "rb", buffering=0) as stream, pytest.raises(OSError) as failed:
        while piece := stream.read(128 * 1024):
            got += piece
    assert failed.value.errno == errno.EIO
    assert got == victim.data[:len(got)] and offset - 128 * 1024 <= len(got) <= offset
    finished = process.run(["cp", victim.path, "/dev/null"], codes=(1,))
    assert "Input/output error" in finished.err
    assert victim.other.read_bytes() == victim.other_data


def test_a_direct_read_of_the_block_fails(victim):
    victim.damage(10 * BLOCK)
    victim.mount.mount()
    buffer = mmap.mmap(-1, BLOCK)
    descriptor = os.open(victim.path, os.O_RDONLY | os.O_DIRECT)
    try:
        with pytest.raises(OSError) as failed:
            os.preadv(descriptor, [buffer], 10 * BLOCK)
        assert failed.value.errno == errno.EIO
        assert os.preadv(descriptor, [buffer], 11 * BLOCK) == BLOCK
        assert buffer[:] == victim.data[11 * BLOCK:12 * BLOCK]
    finally:
        os.close(descriptor)


def test_a_mapping_of_the_block_gets_a_bus_error(victim):
    victim.damage(10 * BLOCK)
    victim.mount.mount()
    script = ("import mmap, sys\n"
              "stream = open(sys.argv[1], 'rb')\n"
              "mapping = mmap.mmap(stream.fileno(), 0, prot=mmap.PROT_READ)\n"
              "sys.stdout.buffer.write(mapping[int(sys.argv[2]):int(sys.argv[2]) + 4096])\n")
    finished = process.run([sys.executable, "-c", script, victim.path, 10 * BLOCK], codes=(-7,), text=False,
                           on_hang=victim.mount.kill)
    assert finished.out == b""
    finished = process.run([sys.executable, "-c", script, victim.path, 600 * BLOCK], text=False)
    assert finished.out == victim.data[600 * BLOCK:601 * BLOCK]


def test_a_block_that_holds_another_blocks_bytes_is_found(victim):
    """Simulates a lost or misplaced write: every byte was once valid, but elsewhere."""
    first, second = (place_of(victim.extents, number * BLOCK) for number in (20, 30))
    store_files.patch(victim.pool, first, store_files.read_at(victim.pool, second, BLOCK))
    store_files.patch(victim.pool, place_of(victim.extents, 40 * BLOCK), bytes(BLOCK))
    victim.mount.mount()
    victim.check_all_but(20 * BLOCK, 40 * BLOCK)


def test_without_verification_the_damage_is_seen(victim):
    """Checks that the tests above damage what they claim to damage."""
    victim.damage(10 * BLOCK, 0x01)
    victim.mount.mount("noverify")
    expected = bytearray(victim.data)
    expected[10 * BLOCK] ^= 0x01
    assert victim.path.read_bytes() == expected


def test_fsck_reports_damaged_data_only_when_asked_to_read_it(victim):
    victim.damage(10 * BLOCK)
    weightfs("verify", "--catalog", victim.mount.store.directory)
    finished = weightfs("verify", "--json", victim.mount.store.directory, codes=(4,))
    report = json.loads(finished.out)
    assert report["problems"] == 1 and report["verified_bytes"] >= 2 * SIZE
    assert "victim" in report["findings"][0]["text"] or str(victim.inode) in report["findings"][0]["text"]
    # Data cannot be repaired: it stays damaged, and must still be detected.
    weightfs("verify", "--repair", victim.mount.store.directory, codes=(4,))
    victim.mount.mount()
    victim.check_all_but(10 * BLOCK)


def test_overwriting_the_block_repairs_the_file(victim):
    victim.damage(10 * BLOCK)
    victim.mount.mount()
    with open(victim.path, "r+b", buffering=0) as stream:
        assert os.pwrite(stream.fileno(), victim.data[10 * BLOCK:11 * BLOCK], 10 * BLOCK) == BLOCK
    victim.check_all_but()
    victim.mount.umount()
    weightfs("verify", victim.mount.store.directory)


def test_overwriting_part_of_the_block_does_not_hide_the_damage(victim):
    victim.damage(10 * BLOCK + 9)
    victim.mount.mount()
    with open(victim.path, "r+b", buffering=0) as stream:
        try:
            os.pwrite(stream.fileno(), b"new", 10 * BLOCK + 100)
            os.fsync(stream.fileno())
        except OSError as error:
            assert error.errno == errno.EIO
    victim.mount.remount()
    victim.check_all_but(10 * BLOCK)


def test_a_damaged_file_can_be_deleted_and_its_space_used_again(victim):
    for number in range(0, 1500, 7):
        victim.damage(number * BLOCK)
    victim.mount.mount()
    os.unlink(victim.path)
    for number in range(3):
        (victim.mount.path / "new").write_bytes(data_of(number, 50 * MIB))
        assert (victim.mount.path / "new").read_bytes() == data_of(number, 50 * MIB)
        os.unlink(victim.mount.path / "new")
    assert victim.other.read_bytes() == victim.other_data
    victim.mount.umount()
    weightfs("verify", victim.mount.store.directory)


@pytest.mark.parametrize("seed", range(6))
def test_damage_of_the_catalog_is_never_taken_for_the_truth(victim, seed):
    """Changes some bytes of RocksDB's files. Either the mount is refused, or everything readable is correct. A log is
    valid up to the damage, which gives an earlier state."""
    generator = random.Random(seed)
    files = [path for path in sorted((victim.mount.store.directory / "meta").iterdir())
             if path.suffix in (".sst", ".log", ".blob") or path.name.startswith("MANIFEST")]
    path = generator.choice([path for path in files if path.stat().st_size > 0])
    for _ in range(3):
        store_files.flip(path, generator.randrange(path.stat().st_size))
    try:
        victim.mount.mount()
    except Failure as failure:
        assert "exit 1" in str(failure) and "weightfs: " in str(failure)
        return
    for file, expected in ((victim.path, victim.data), (victim.other, victim.other_data)):
        try:
            got = file.read_bytes()
            assert got == expected or (path.suffix == ".log" and expected.startswith(got))
        except OSError as error:
            assert error.errno in (errno.EIO, errno.ENOENT)
    assert victim.mount.alive(), "the filesystem's process ended"
