# SPDX-License-Identifier: Apache-2.0
"""Small files that are opened only for reading come from the kernel's page cache from the first open on. Every reader
sees the content written last, however it was written, and never a mixture of two writes."""

import contextlib
import ctypes
import fcntl
import mmap
import os
import struct
import subprocess
import sys

import pytest

from harness.syscalls import FALLOC_KEEP_SIZE, FALLOC_PUNCH_HOLE, fallocate
from lease_client import BLOCK, Lease, ticket, write_direct, write_many

pytestmark = pytest.mark.usefixtures("weightfs_only")
# With a single receiver a close is processed before the next request is counted.
MOUNT_OPTIONS = "threads=1"
PAGE = 4096
IOC_STATS = (2 << 30) | (208 << 16) | (ord("W") << 8) | 3
READ_BYTES, REQUESTS = 2, 16           # fields of struct weightfs_stats
SIZES = (1, PAGE, 10_000, 128 << 10)


def statistics(mount):
    descriptor = os.open(mount.path, os.O_RDONLY)
    try:
        return struct.unpack_from("<II25Q", fcntl.ioctl(descriptor, IOC_STATS, bytes(208)))
    finally:
        os.close(descriptor)


def read(path, flags=0):
    descriptor = os.open(path, os.O_RDONLY | flags)
    try:
        return os.read(descriptor, 1 << 20)
    finally:
        os.close(descriptor)


def read_direct(path):
    """By O_DIRECT, into aligned memory."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        with mmap.mmap(-1, 1 << 20) as memory:
            return memory[:os.readv(descriptor, [memory])]
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("size", SIZES)
def test_a_small_file_is_read_from_the_daemon_once_and_reopened_with_two_requests(mount, work, size):
    count = 50
    for number in range(count):
        (work / str(number)).write_bytes(os.urandom(size))

    def cost():
        before = statistics(mount)
        alone = statistics(mount)[REQUESTS] - before[REQUESTS]
        for number in range(count):
            assert len(read(work / str(number))) == size
        after = statistics(mount)
        return after[READ_BYTES] - before[READ_BYTES], after[REQUESTS] - before[REQUESTS] - 2 * alone

    # A machine short of memory may drop pages meanwhile, so the measurement is repeated.
    assert cost()[0] >= count * size
    assert any(cost() == (0, 2 * count) for _ in range(20)), "open and release alone are requested"


def test_the_attributes_of_a_listed_directory_need_no_further_requests(mount, work):
    """As `du`, `find -size` and `ls -l` do: the whole listing first, then the attributes of each entry."""
    count = 3000
    for number in range(count):
        os.close(os.open(work / str(number), os.O_CREAT | os.O_WRONLY, 0o644))
    mount.remount()
    before = statistics(mount)[REQUESTS]
    for name in os.listdir(work):
        os.stat(work / name)
    assert statistics(mount)[REQUESTS] - before < count / 10


@contextlib.contextmanager
def opened(path, flags):
    descriptor = os.open(path, flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def overwrite(path, old):
    patch, at = os.urandom(max(len(old) // 3, 1)), len(old) // 2
    with opened(path, os.O_WRONLY) as descriptor:
        os.pwrite(descriptor, patch, at)
    return old[:at] + patch + old[at + len(patch):]


def overwrite_by_o_direct(path, old):
    with opened(path, os.O_RDWR | os.O_DIRECT) as descriptor, mmap.mmap(-1, PAGE) as memory:
        memory[:] = os.urandom(PAGE)
        os.pwritev(descriptor, [memory], 0)
        return memory[:] + old[PAGE:]


def append(path, old):
    patch = os.urandom(5000)
    with opened(path, os.O_WRONLY | os.O_APPEND) as descriptor:
        os.write(descriptor, patch)
    return old + patch


def write_behind_the_end(path, old):
    with opened(path, os.O_WRONLY) as descriptor:
        os.pwrite(descriptor, b"end", len(old) + 9000)
    return old + bytes(9000) + b"end"


def truncate(path, old):
    os.truncate(path, len(old) // 2)
    return old[:len(old) // 2]


def shrink_and_grow(path, old):
    os.truncate(path, len(old) // 2)
    os.truncate(path, len(old))
    return old[:len(old) // 2] + bytes(len(old) - len(old) // 2)


def rewrite(path, old):
    path.write_bytes(old[::-1] + b"new")
    return old[::-1] + b"new"


def punch(path, old):
    with opened(path, os.O_RDWR) as descriptor:
        fallocate(descriptor, FALLOC_PUNCH_HOLE | FALLOC_KEEP_SIZE, 0, len(old))
    return bytes(len(old))


def copy(path, old):
    source = path.with_name("source")
    source.write_bytes(old[::-1])
    with opened(source, os.O_RDONLY) as reader, opened(path, os.O_WRONLY) as writer:
        assert os.copy_file_range(reader, writer, len(old), 0, 0) == len(old)
    return old[::-1]


def store_in_a_mapping(path, old):
    with opened(path, os.O_RDWR) as descriptor, mmap.mmap(descriptor, len(old)) as memory:
        memory[:] = old[::-1]
    return old[::-1]


def write_through_a_link(path, old):
    link = path.with_name("link")
    os.link(path, link)
    return overwrite(link, old)


def write_by_a_lease(path, old):
    data = os.urandom(len(old) + 100)
    write_direct(path, data)
    return data


CHANGES = (overwrite, overwrite_by_o_direct, append, write_behind_the_end, truncate, shrink_and_grow, rewrite, punch,
           copy, store_in_a_mapping, write_through_a_link, write_by_a_lease)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("held", [True, False], ids=["reader-open", "reader-closed"])
def test_a_change_is_seen_at_once(work, change, size, held):
    path = work / "file"
    content = os.urandom(size)
    path.write_bytes(content)
    assert read(path) == read(path) == content
    with contextlib.ExitStack() as stack:
        if held:
            descriptor = stack.enter_context(opened(path, os.O_RDONLY))
            mapping = stack.enter_context(mmap.mmap(descriptor, size, mmap.MAP_SHARED, mmap.PROT_READ))
            assert mapping[:] == os.pread(descriptor, 1 << 20, 0) == content
        for _ in range(2):
            content = change(path, content)
            if change is write_through_a_link:
                path.with_name("link").unlink()
            if held:
                shared = min(size, len(content))
                assert mapping[:shared] == content[:shared]
                assert os.pread(descriptor, 1 << 20, 0) == content
            assert read(path) == read_direct(path) == read(path) == content
            assert path.stat().st_size == len(content)


def commit_by_a_lease(descriptor, data):
    """Like write_opened, but without a request for the attributes, after which the kernel would drop the pages."""
    token, name = ticket(descriptor)
    with Lease(name) as lease:
        lease.commit(token, len(data), lease.fill(lease.reserve(token, -(-len(data) // BLOCK)), data))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("write", [lambda writer, data: os.pwrite(writer, data, 0), commit_by_a_lease],
                         ids=["pwrite", "lease"])
def test_a_write_drops_pages_that_were_filled_after_its_open(work, write, size):
    """An open for writing drops all pages of the file, so the writer is open before the reader. A mapping shows pages
    as they are, while read(2) compares the times of the file first."""
    path = work / "file"
    path.write_bytes(os.urandom(size))
    with opened(path, os.O_RDWR) as writer, opened(path, os.O_RDONLY) as reader, \
            mmap.mmap(reader, size, mmap.MAP_SHARED, mmap.PROT_READ) as mapping:
        for _ in range(3):
            assert mapping[:] == read(path)
            content = os.urandom(size)
            write(writer, content)
            assert mapping[:] == content
            assert read(path) == os.pread(reader, 1 << 20, 0) == content


def replace(path, data):
    path.with_name("new").write_bytes(data)
    os.replace(path.with_name("new"), path)


def replace_by_leases(path, data):
    write_many(path.parent, {path.name.encode(): data})


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("how", [replace, replace_by_leases])
def test_a_replacement_is_seen_under_the_name_and_the_old_file_in_its_descriptor(work, how, size):
    path = work / "file"
    old, new = os.urandom(size), os.urandom(size + 1)
    path.write_bytes(old)
    assert read(path) == old
    with opened(path, os.O_RDONLY) as descriptor:
        how(path, new)
        assert read(path) == read_direct(path) == read(path) == new
        assert os.pread(descriptor, 1 << 20, 0) == old


LISTER = """
import os, sys
print("ready", flush=True)
while os.getppid() == int(sys.argv[2]):
    os.close(os.open(sys.argv[1] + "/change", os.O_CREAT | os.O_WRONLY))
    names = os.listdir(sys.argv[1])   # With attributes, which the kernel caches with the names.
    os.unlink(sys.argv[1] + "/change")
    assert {"file-0", "file-1", "file-2", "file-3"} <= set(names), names
"""


def test_listings_do_not_keep_names_that_a_leased_commit_replaced(work):
    """A listing is not synchronized with a leased commit, which drops the entries that a listing brings back."""
    write_many(work, {f"file-{number}".encode(): b"" for number in range(4)})
    with subprocess.Popen([sys.executable, "-c", LISTER, work, str(os.getpid())], stdout=subprocess.PIPE,
                          text=True) as lister:
        try:
            assert lister.stdout.readline() == "ready\n"
            for version in range(200):
                files = {f"file-{number}": os.urandom(version + number + 1) for number in range(4)}
                write_many(work, {name.encode(): data for name, data in files.items()}, durable=False)
                for name, data in files.items():
                    assert (work / name).stat().st_size == len(data)
                    assert read(work / name) == data
            assert lister.poll() is None
        finally:
            lister.kill()


def test_pages_outlive_a_remount_as_read_only_and_show_changes_after_it(mount, work):
    if os.geteuid() != 0:
        pytest.skip("needs root to remount")
    path = work / "file"
    path.write_bytes(b"a" * PAGE)
    assert read(path) == b"a" * PAGE
    remount = lambda how: subprocess.run(["mount", "-i", "-o", f"remount,{how}", mount.path], check=True)  # noqa: E731
    remount("ro")
    try:
        assert read(path) == b"a" * PAGE
    finally:
        remount("rw")
    with opened(path, os.O_WRONLY) as descriptor:
        os.pwrite(descriptor, b"b", 1)
    assert read(path) == b"ab" + b"a" * (PAGE - 2)


# Versions of one page. A reader that begins after version N was acknowledged sees nothing older. A read beside a write
# may have parts of both, as on every filesystem whose pages the kernel copies without a lock; one of a replaced file is
# whole.
READER = """
import mmap, os, struct, sys
how, path, shared, content = sys.argv[1:]
descriptor = os.open(shared, os.O_RDWR)
acknowledged = mmap.mmap(descriptor, 16)
kept = os.open(path, os.O_RDONLY)
mapping = mmap.mmap(kept, 4096, mmap.MAP_SHARED, mmap.PROT_READ)
memory = mmap.mmap(-1, 4096)

def reopened(flags):
    descriptor = os.open(path, os.O_RDONLY | flags)
    try:
        assert os.preadv(descriptor, [memory], 0) == 4096
        return memory[:]
    finally:
        os.close(descriptor)

sources = {"reopen": lambda: reopened(0), "direct": lambda: reopened(os.O_DIRECT),
           "kept": lambda: os.pread(kept, 4096, 0), "mapping": lambda: mapping[:8]}
print("ready", flush=True)
last = reads = 0
while last < struct.unpack_from("<Q", acknowledged, 8)[0]:
    least = struct.unpack_from("<Q", acknowledged)[0]
    data = sources[how]()
    words = struct.unpack(f"<{len(data) // 8}Q", data)
    assert min(words) >= max(least, last), f"{how}: read version {min(words)} after version {max(least, last)}"
    assert content == "mixed" or min(words) == max(words), f"{how}: the content of two versions in one read"
    last = min(words)
    reads += 1
print(reads)
"""


@pytest.mark.parametrize("how", ["pwrite", "mapped", "replace"])
def test_readers_of_other_processes_see_versions_in_order(mount, work, local, how):
    path, shared = work / "file", local / "versions"
    versions = 300
    path.write_bytes(bytes(PAGE))
    shared.write_bytes(struct.pack("<QQ", 0, versions))
    # A mapping changes word by word, and a replaced file keeps its content.
    kinds = {"pwrite": ["reopen", "reopen", "direct", "kept", "mapping"], "mapped": ["mapping"],
             "replace": ["reopen", "reopen", "direct"]}[how]
    content = "whole" if how == "replace" else "mixed"
    readers = [subprocess.Popen([sys.executable, "-c", READER, kind, path, shared, content], stdout=subprocess.PIPE,
                                text=True) for kind in kinds]
    try:
        for reader in readers:
            assert reader.stdout.readline() == "ready\n"
        with opened(shared, os.O_RDWR) as state, mmap.mmap(state, 16) as acknowledged, \
                opened(path, os.O_RDWR) as writer, mmap.mmap(writer, PAGE) as mapping:
            for version in range(1, versions + 1):
                data = struct.pack("<Q", version)
                if how == "pwrite":
                    os.pwrite(writer, data * (PAGE // 8), 0)
                elif how == "mapped":
                    ctypes.c_uint64.from_buffer(mapping).value = version
                else:
                    replace(path, data * (PAGE // 8))
                acknowledged[:8] = data
        for reader in readers:
            assert reader.wait(timeout=60) == 0
    finally:
        for reader in readers:
            if reader.poll() is None:
                reader.kill()
            reader.communicate()
