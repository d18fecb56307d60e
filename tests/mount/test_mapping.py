# SPDX-License-Identifier: Apache-2.0
"""Memory maps: other processes, read and write see changes immediately, and changes are kept."""

import mmap
import os
import signal
import subprocess
import sys

import page_race
import pytest

from harness import process

MIB = 1 << 20


def mapped(path, size, flags=mmap.MAP_SHARED):
    descriptor = os.open(path, os.O_RDWR)
    try:
        return mmap.mmap(descriptor, size, flags=flags)
    finally:
        os.close(descriptor)


def test_write_is_seen_in_a_mapping_and_a_mapping_in_reads(mount, work):
    path = work / "file"
    path.write_bytes(bytes(MIB))
    with mapped(path, MIB) as mapping, open(path, "r+b", buffering=0) as stream:
        for step in range(200):
            offset, text = (step * 5003) % (MIB - 100), f"step {step}".encode()
            if step % 2:
                stream.seek(offset)
                stream.write(text)
                assert mapping[offset:offset + len(text)] == text
            else:
                mapping[offset:offset + len(text)] = text
                stream.seek(offset)
                assert stream.read(len(text)) == text
        kept = mapping[:]
    mount.remount()
    assert path.read_bytes() == kept


OTHER = """
import mmap, os, sys
descriptor = os.open(sys.argv[1], os.O_RDWR)
mapping = mmap.mmap(descriptor, 1 << 20)
print("mapped", flush=True)
for line in sys.stdin:
    how, offset, text = line.split()
    offset, text = int(offset), text.encode()
    if how == "map":
        mapping[offset:offset + len(text)] = text
    elif how == "write":
        os.pwrite(descriptor, text, offset)
    elif how == "see":
        text = mapping[offset:offset + len(text)]
    elif how == "read":
        text = os.pread(descriptor, len(text), offset)
    print(text.decode(), flush=True)
"""


def test_two_processes_share_a_mapping(work):
    path = work / "file"
    path.write_bytes(b"." * MIB)
    other = subprocess.Popen([sys.executable, "-c", OTHER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                             text=True)

    def ask(how, offset, text):
        other.stdin.write(f"{how} {offset} {text}\n")
        other.stdin.flush()
        return other.stdout.readline().strip()

    try:
        assert other.stdout.readline().strip() == "mapped"
        with mapped(path, MIB) as mapping, open(path, "r+b", buffering=0) as stream:
            for step in range(50):
                offset, text = step * 20_011, f"number{step}"
                how = ("map", "write")[step % 2]
                assert ask(how, offset, text) == text
                assert mapping[offset:offset + len(text)].decode() == text
                assert os.pread(stream.fileno(), len(text), offset).decode() == text
                mapping[offset:offset + len(text)] = text.upper().encode()
                assert ask("see", offset, text) == text.upper()
                os.pwrite(stream.fileno(), text[::-1].encode(), offset)
                assert ask("read", offset, text) == ask("see", offset, text) == text[::-1]
    finally:
        other.stdin.close()
        other.wait(timeout=60)


def test_private_mapping_sees_the_file_until_it_is_written(work):
    path = work / "file"
    path.write_bytes(b"a" * 8192)
    with mapped(path, 8192, mmap.MAP_PRIVATE) as mapping:
        assert mapping[:4] == b"aaaa"
        mapping[0:1] = b"b"
        assert path.read_bytes()[:1] == b"a"


def test_mapping_written_without_msync_is_kept_by_fsync_and_unmount(mount, work):
    path = work / "file"
    path.write_bytes(bytes(4 * MIB))
    descriptor = os.open(path, os.O_RDWR)
    mapping = mmap.mmap(descriptor, 4 * MIB)
    mapping[:] = b"\x5a" * (4 * MIB)
    os.fsync(descriptor)
    mapping.close()
    os.close(descriptor)
    mount.remount()
    assert path.read_bytes() == b"\x5a" * (4 * MIB)


@pytest.mark.parametrize("change", ["rename", "link", "rename of the directory"])
def test_a_new_name_survives_with_what_a_mapping_has_stored(factory, change):
    mount = factory.mount(factory.store("64M"))
    directory, final = mount.path / "directory", mount.path / "final"
    directory.mkdir()
    temporary = directory / "temporary"
    temporary.write_bytes(bytes(MIB))
    mapping = mapped(temporary, MIB)
    mapping[:] = b"\x5a" * MIB
    if change == "link":
        os.link(temporary, final)
    elif change == "rename":
        final.write_bytes(b"old")
        os.rename(temporary, final)
    else:
        os.rename(directory, mount.path / "other")
        final = mount.path / "other" / "temporary"
    root = os.open(mount.path, os.O_RDONLY)
    os.fsync(root)
    os.close(root)
    mount.kill9()
    mapping.close()
    mount.mount()
    assert final.read_bytes() == b"\x5a" * MIB


def test_mapping_outlives_the_descriptor_and_the_name(work):
    path = work / "file"
    path.write_bytes(b"lives" + bytes(8192))
    with mapped(path, 8192) as mapping:
        path.unlink()
        mapping[100:105] = b"still"
        assert mapping[:5] == b"lives" and mapping[100:105] == b"still"


TOUCH_BEYOND = """
import mmap, os, sys
descriptor = os.open(sys.argv[1], os.O_RDWR)
mapping = mmap.mmap(descriptor, 16384)
os.ftruncate(descriptor, 4096)
print(mapping[0], flush=True)
mapping[8192]
"""


def test_access_beyond_the_end_ends_the_process(work):
    path = work / "file"
    path.write_bytes(bytes(16384))
    finished = process.run([sys.executable, "-c", TOUCH_BEYOND, path], codes=None)
    assert finished.out == "0\n" and finished.code == -signal.SIGBUS


def test_shortened_and_grown_file_shows_zeros_in_a_mapping(work):
    path = work / "file"
    path.write_bytes(b"x" * 8192)
    with mapped(path, 8192) as mapping:
        assert mapping[8191:] == b"x"
        os.truncate(path, 100)
        os.truncate(path, 8192)
        assert mapping[99:101] == b"x\0" and mapping[4096:] == bytes(4096)


def test_anonymous_length_and_unaligned_size(mount, work):
    path = work / "file"
    path.write_bytes(b"e" * 5001)
    with mapped(path, 5001) as mapping:
        assert len(mapping) == 5001
        mapping[5000:5001] = b"E"
        mapping.flush()
    assert path.stat().st_size == 5001
    mount.remount()
    assert path.read_bytes() == b"e" * 5000 + b"E"


def test_splice_and_sendfile_between_the_mount_and_a_pipe(mount, work):
    expected = os.urandom(MIB)
    (work / "source").write_bytes(expected)
    source, target = os.open(work / "source", os.O_RDONLY), os.open(work / "target", os.O_WRONLY | os.O_CREAT, 0o644)
    reader, writer = os.pipe()
    done = 0
    while count := os.splice(source, writer, 65536):
        while count:
            moved = os.splice(reader, target, count)
            done, count = done + moved, count - moved
    assert done == MIB
    for descriptor in (source, target, reader, writer):
        os.close(descriptor)
    mount.remount()
    assert (work / "target").read_bytes() == expected


@pytest.mark.limit(500)
@pytest.mark.parametrize("how", page_race.CHANGES)
def test_changes_of_one_page_by_a_mapping_and_by_direct_writes_are_both_kept(work, how):
    for _ in range(3):
        assert not any(page_race.lost(how, os.fspath(work / "file"), 8192))


@pytest.mark.limit(300)
@pytest.mark.parametrize("seen", page_race.SEEN)
def test_a_mapping_and_direct_writes_change_one_word_in_turn(work, seen):
    """A hang means that an answer through the mapping was lost: each side waits for the other."""
    page_race.take_turns(seen, os.fspath(work / "file"), 200)


def test_a_reader_of_a_mapping_sees_every_write_that_has_ended(work):
    """A page that is read between the kernel's own drop and the write must not keep the old content."""
    path = work / "file"
    path.write_bytes(bytes(MIB))
    reader = subprocess.Popen([sys.executable, "-c", READ_ALL_THE_TIME, path], stdout=subprocess.PIPE,
                              stdin=subprocess.PIPE)
    descriptor = os.open(path, os.O_RDWR)
    try:
        assert reader.stdout.read(1) == b"r"
        with open(path, "rb") as stream, mmap.mmap(stream.fileno(), MIB, prot=mmap.PROT_READ) as mapping:
            for step in range(3000):
                offset, text = step % 16 * 65536, f"{step:8}".encode()
                os.pwrite(descriptor, text, offset)
                assert mapping[offset:offset + 8] == text
    finally:
        os.close(descriptor)
        reader.kill()
        reader.communicate()


READ_ALL_THE_TIME = """
import mmap, sys
with open(sys.argv[1], "rb") as stream, mmap.mmap(stream.fileno(), 1 << 20, prot=mmap.PROT_READ) as mapping:
    print("r", end="", flush=True)
    while True:
        for offset in range(0, 1 << 20, 65536):
            mapping[offset]
"""
