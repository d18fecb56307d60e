# SPDX-License-Identifier: Apache-2.0
"""One user cannot starve the others: what each client can make the daemon keep is bounded, and listings of directories
keep no copy of them."""

import errno
import os
import re
import resource
import threading

import pytest

from harness import needs
from harness.filesystems import wait_until
from harness.listing import Directory, getdents
from harness.syscalls import errno_of
from harness.users import NOBODY, OTHER, call_as

MOUNT_OPTIONS = "allow_other,dev,suid"
KIB, MIB = 1 << 10, 1 << 20
SMALLEST_BUFFER = 280   # of getdents64(2): one entry with the longest name


def fill(directory, count, name="entry-{:06}"):
    directory.mkdir()
    names = [name.format(index) for index in range(count)]
    for each in names:
        os.close(os.open(directory / each, os.O_CREAT | os.O_WRONLY, 0o644))
    return [os.fsencode(each) for each in names]


def uncache(directory):
    """Makes the kernel ask the daemon for the next listing."""
    (directory / "zz-uncache").touch()
    (directory / "zz-uncache").unlink()


def resident(mount):
    with open(f"/proc/{mount.pid}/status", encoding="ascii") as status:
        return int(re.search(r"VmRSS:\s+(\d+) kB", status.read()).group(1)) * KIB


def listing(descriptor, size):
    """All entries from the present position on, with getdents64(2) buffers of that size."""
    found = []
    while entries := getdents(descriptor, size):
        found += entries
    return found


# Directories


@pytest.mark.parametrize("size", [SMALLEST_BUFFER, 1000, 4096, 32 * KIB, MIB])
def test_a_listing_is_complete_with_every_size_of_buffer(work, size):
    names = fill(work / "d", 1500, "{:06}" + "x" * 40)
    for _ in range(2):   # from the daemon, and from the kernel's cache
        descriptor = os.open(work / "d", os.O_RDONLY | os.O_DIRECTORY)
        assert sorted(name for name, _ in listing(descriptor, size)) == [b".", b".."] + names
        assert getdents(descriptor, size) == []
        os.lseek(descriptor, 0, os.SEEK_SET)
        assert len(listing(descriptor, size)) == 1502
        os.close(descriptor)


@pytest.mark.parametrize("size", [SMALLEST_BUFFER, 1000, 32 * KIB])
def test_every_entry_is_listed_once_while_listed_ones_are_deleted(work, size):
    names = fill(work / "d", 2000)
    uncache(work / "d")
    descriptor = os.open(work / "d", os.O_RDONLY | os.O_DIRECTORY)
    found = []
    while entries := [name for name, _ in getdents(descriptor, size)]:
        found += entries
        for name in entries:
            if name not in (b".", b".."):
                os.unlink(os.fsencode(work / "d") + b"/" + name)
    os.close(descriptor)
    assert sorted(found) == [b".", b".."] + names
    uncache(work / "d")
    assert os.listdir(work / "d") == []


@pytest.mark.parametrize("size", [SMALLEST_BUFFER, 4096])
def test_entries_that_stay_are_listed_once_while_others_come_and_go(work, size):
    stays = set(fill(work / "d", 1000))
    uncache(work / "d")
    descriptor = os.open(work / "d", os.O_RDONLY | os.O_DIRECTORY)
    found, turn = [], 0
    while entries := [name for name, _ in getdents(descriptor, size)]:
        found += entries
        for order in ("aa-{}", "entry-000500-{}", "zz-{}"):
            (work / "d" / order.format(turn)).touch()
            if turn > 1:
                (work / "d" / order.format(turn - 2)).unlink()
        turn += 1
    os.close(descriptor)
    assert len(found) == len(set(found))
    assert stays <= set(found)


def test_streams_go_back_to_every_position(work):
    fill(work / "d", 3000)
    uncache(work / "d")
    stream = Directory(work / "d")
    positions, names = [], []
    while True:
        positions.append(stream.tell())
        name = stream.read()
        if name is None:
            break
        names.append(name)
    assert len(set(names)) == 3002 and names[:2] == [b".", b".."]
    end = positions.pop()
    for index in [*range(0, 3002, 7), 3001, 0, 1, 2, 3, 2999, 1500, 1499]:
        stream.seek(positions[index])
        assert stream.read() == names[index]
        assert stream.read() == (names[index + 1] if index < 3001 else None)
    stream.seek(end)
    assert stream.read() is None
    (work / "d" / "entry-000000-new").touch()
    stream.rewind()
    listed = []
    while (name := stream.read()) is not None:
        listed.append(name)
    stream.close()
    assert sorted(listed) == sorted([*names, b"entry-000000-new"])


def test_open_directories_keep_little_memory(work, mount, weightfs_only):
    """A listing of 20,000 entries took 2 MB for each descriptor; now it keeps the names of one reply of 64 KiB."""
    fill(work / "d", 20_000, "{:06}" + "n" * 60)
    descriptors = []
    before = resident(mount)
    for _ in range(50):
        uncache(work / "d")
        descriptor = os.open(work / "d", os.O_RDONLY | os.O_DIRECTORY)
        for _ in range(3):
            assert getdents(descriptor, 64 * KIB)
        descriptors.append(descriptor)
    kept = resident(mount) - before
    for descriptor in descriptors:
        assert getdents(descriptor, 64 * KIB)
        os.close(descriptor)
    assert kept <= 50 * 80 * KIB + 16 * MIB


# Extended attributes


def test_the_attributes_of_a_file_are_limited(work, mount, weightfs_only):
    file = work / "f"
    file.touch()
    value = bytes(range(256)) * 256
    for index in range(3):
        os.setxattr(file, f"user.{index}", value)
    assert errno_of(os.setxattr, file, "user.3", value) == errno.ENOSPC
    os.setxattr(file, "user.3", value[:-24])
    assert errno_of(os.setxattr, file, "user.4", b"") == errno.ENOSPC
    assert errno_of(os.setxattr, file, "user.large", value + b"x") == errno.E2BIG
    os.setxattr(file, "user.3", value[:-24])
    mount.remount()
    assert errno_of(os.setxattr, file, "user.4", b"") == errno.ENOSPC
    assert sorted(os.listxattr(file)) == [f"user.{index}" for index in range(4)]
    os.removexattr(file, "user.0")
    os.setxattr(file, "user.0", value)


@needs.root
def test_attributes_of_every_namespace_count(work, weightfs_only):
    file = work / "f"
    file.touch()
    value = bytes(64 * KIB)
    for name in ("user.a", "trusted.a", "security.a"):
        os.setxattr(file, name, value)
    for name in ("user.b", "trusted.b", "security.b"):
        assert errno_of(os.setxattr, file, name, value) == errno.ENOSPC


# Limits of a user


OPENS, PROCESSES = 65_536, 4   # of a user; and few enough for the usual limit of a process


@needs.root
@pytest.mark.limit(300)
def test_opens_of_one_user_are_limited(work, mount, weightfs_only):
    each, (_, most) = OPENS // PROCESSES, resource.getrlimit(resource.RLIMIT_NOFILE)
    if most < each + 100:
        pytest.skip(f"needs a limit of {each + 100} open files (ulimit -Hn)")
    (work / "f").touch()
    before = resident(mount)
    children = []

    def hold(ready):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        os.setresuid(NOBODY, NOBODY, NOBODY)
        for _ in range(each):
            os.open(work / "f", os.O_RDONLY)
        os.write(ready, b"x")
        threading.Event().wait()

    reader, writer = os.pipe()
    try:
        for _ in range(PROCESSES):
            child = os.fork()
            if child == 0:
                try:
                    hold(writer)
                finally:
                    os._exit(1)
            children.append(child)
            assert os.read(reader, 1) == b"x"
        assert resident(mount) - before <= 64 * MIB
        assert call_as(NOBODY, errno_of, os.open, work / "f", os.O_RDONLY) == errno.EMFILE
        assert call_as(NOBODY, errno_of, os.listdir, work) == errno.EMFILE
        assert call_as(OTHER, os.open, work / "f", os.O_RDONLY) > 0
        assert call_as(OTHER, os.listdir, work) == ["f"]
    finally:
        for child in children:
            os.kill(child, 9)
            os.waitpid(child, 0)
        os.close(reader)
        os.close(writer)
    # The kernel does not wait until the daemon has closed the files.
    assert wait_until(lambda: call_as(NOBODY, errno_of, os.listdir, work) == 0)


# Attacks on the receivers. Look-ups must go on meanwhile; no time is asserted.


@needs.root
def test_lookups_go_on_beside_slow_metadata_work(work, weightfs_only):
    fill(work / "d", 5000)
    file = work / "d" / "attributes"
    file.touch()
    file.chmod(0o666)
    (work / "d").chmod(0o777)
    value = bytes(64 * KIB)
    for index in range(3):
        os.setxattr(file, f"user.{index}", value)

    def attack(role):
        os.setresuid(NOBODY, NOBODY, NOBODY)
        while True:
            if role == "set":
                os.setxattr(file, f"user.of-{os.getpid()}", value[:30_000])
                os.removexattr(file, f"user.of-{os.getpid()}")
            elif role == "list":
                os.listxattr(file)
            else:
                (work / "d" / f"x{os.getpid()}").touch()
                os.listdir(work / "d")
                (work / "d" / f"x{os.getpid()}").unlink()

    children = []
    for role in ("set", "set", "list", "list", "directory", "directory"):
        child = os.fork()
        if child == 0:
            try:
                attack(role)
            finally:
                os._exit(1)
        children.append(child)
    try:
        (work / "victim").mkdir()
        for index in range(300):
            assert errno_of(os.stat, work / "victim" / f"none-{index}") == errno.ENOENT
            (work / "victim" / f"some-{index}").write_bytes(b"x")
        assert len(os.listdir(work / "victim")) == 300
        assert [os.waitpid(child, os.WNOHANG) for child in children] == [(0, 0)] * len(children), "an attack ended"
    finally:
        for child in children:
            os.kill(child, 9)
            os.waitpid(child, 0)


def test_large_deleted_files_give_back_their_space(work, mount):
    free = os.statvfs(work).f_bfree
    with open(work / "large", "wb") as stream:
        os.posix_fallocate(stream.fileno(), 0, 100 * MIB)
        os.unlink(work / "large")
        assert os.statvfs(work).f_bfree < free - 20_000
    assert wait_until(lambda: os.statvfs(work).f_bfree >= free - 100)
    with open(work / "again", "wb") as stream:
        os.posix_fallocate(stream.fileno(), 0, 100 * MIB)
    os.unlink(work / "again")


def test_directories_with_many_deleted_entries_are_removed(work):
    names = fill(work / "d", 3000)
    (work / "target").mkdir()
    for name in names:
        os.rename(os.fsencode(work / "d") + b"/" + name, os.fsencode(work / "target") + b"/" + name)
    assert errno_of(os.rmdir, work / "target") == errno.ENOTEMPTY
    (work / "e").mkdir()
    assert errno_of(os.rename, work / "e", work / "target") == errno.ENOTEMPTY
    for name in names:
        os.unlink(os.fsencode(work / "target") + b"/" + name)
    os.rename(work / "e", work / "target")
    os.rmdir(work / "target")
    os.rmdir(work / "d")
