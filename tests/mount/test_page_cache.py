# SPDX-License-Identifier: Apache-2.0
"""Files that are read again come from the kernel's page cache, and always show the content written last."""

import fcntl
import os
import struct

import pytest

pytestmark = pytest.mark.usefixtures("weightfs_only")
# A pass is recorded when the file is closed, and the kernel does not wait for that. With a single receiver the close is
# processed before the next open.
MOUNT_OPTIONS = "threads=1"
MIB = 1 << 20
SIZE = 4 * MIB
IOC_STATS = (2 << 30) | (208 << 16) | (ord("W") << 8) | 3
IOC_DROP_CACHE = (ord("W") << 8) | 4
READ_BYTES, REQUESTS = 2, 16           # fields of struct weightfs_stats


def statistic(mount, field):
    """A counter since the mount."""
    descriptor = os.open(mount.path, os.O_RDONLY)
    try:
        out = fcntl.ioctl(descriptor, IOC_STATS, bytes(208))
    finally:
        os.close(descriptor)
    return struct.unpack_from("<II25Q", out)[field]


def asked_of_the_daemon(mount):
    """Number of bytes that the kernel has read from the daemon since the mount."""
    return statistic(mount, READ_BYTES)


def cost_of_reading(mount, path, expected):
    before = asked_of_the_daemon(mount)
    with open(path, "rb", buffering=0) as stream:
        data = b"".join(iter(lambda: stream.read(MIB), b""))
    assert data == expected
    return asked_of_the_daemon(mount) - before


def read_until_hot(mount, path, expected):
    """The third read requests nothing, unless a machine short of memory has dropped pages meanwhile."""
    for _ in range(2):
        cost_of_reading(mount, path, expected)
    assert any(cost_of_reading(mount, path, expected) == 0 for _ in range(20))


@pytest.fixture
def content():
    return os.urandom(SIZE)


@pytest.fixture
def path(work, content):
    path = work / "file"
    path.write_bytes(content)
    return path


def test_the_first_pass_bypasses_the_page_cache_and_the_third_uses_it(mount, work, content):
    def third(name):
        (work / name).write_bytes(content)
        assert cost_of_reading(mount, work / name, content) >= SIZE
        assert cost_of_reading(mount, work / name, content) >= SIZE, "the second fills the page cache"
        return cost_of_reading(mount, work / name, content)

    assert any(third(f"file-{number}") == 0 for number in range(10)), "memory is not that short ten times"


@pytest.mark.parametrize("how", ["overwrite", "append", "truncate", "grow", "replace", "punch", "copy"])
def test_a_change_is_seen_at_once_by_readers_of_a_hot_file(mount, work, path, content, how):
    read_until_hot(mount, path, content)
    with open(path, "rb", buffering=0) as reader:
        assert reader.read(4096) == content[:4096]
        changed = change(how, work, path, content)
        assert os.pread(reader.fileno(), 2 * SIZE, 0) == (content if how == "replace" else changed)
    for _ in range(3):
        cost_of_reading(mount, path, changed)


def change(how, work, path, content):
    patch = os.urandom(5000)
    if how == "replace":
        (work / "new").write_bytes(patch)
        os.replace(work / "new", path)
        return patch
    descriptor = os.open(path, os.O_RDWR)
    try:
        if how == "overwrite":
            os.pwrite(descriptor, patch, MIB + 17)
            return content[:MIB + 17] + patch + content[MIB + 17 + len(patch):]
        if how == "append":
            os.pwrite(descriptor, patch, SIZE)
            return content + patch
        if how == "truncate":
            os.ftruncate(descriptor, MIB + 1)
            return content[:MIB + 1]
        if how == "grow":
            os.ftruncate(descriptor, MIB + 1)
            os.ftruncate(descriptor, SIZE)
            return content[:MIB + 1] + bytes(SIZE - MIB - 1)
        if how == "punch":
            fallocate(descriptor, 0x1 | 0x2, MIB + 100, 20000)
            return content[:MIB + 100] + bytes(20000) + content[MIB + 20100:]
        (work / "source").write_bytes(patch)
        source = os.open(work / "source", os.O_RDONLY)
        os.copy_file_range(source, descriptor, len(patch), 0, 3 * MIB)
        os.close(source)
        return content[:3 * MIB] + patch + content[3 * MIB + len(patch):]
    finally:
        os.close(descriptor)


def fallocate(descriptor, mode, offset, length):
    import ctypes
    libc = ctypes.CDLL(None, use_errno=True)
    arguments = (ctypes.c_int(descriptor), ctypes.c_int(mode), ctypes.c_int64(offset), ctypes.c_int64(length))
    assert libc.fallocate(*arguments) == 0, os.strerror(ctypes.get_errno())


def test_direct_and_hot_readers_agree_while_a_writer_goes_on(mount, path, content):
    read_until_hot(mount, path, content)
    writer = os.open(path, os.O_RDWR)
    hot = os.open(path, os.O_RDONLY)
    try:
        for step in range(100):
            text = f"step {step:06}".encode()
            offset = (step * 40_009) % (SIZE - 100)
            os.pwrite(writer, text, offset)
            assert os.pread(hot, len(text), offset) == text
            assert os.pread(writer, len(text), offset) == text
    finally:
        os.close(hot)
        os.close(writer)


def test_dropping_the_caches_of_a_file_makes_it_cold(mount, path, content):
    read_until_hot(mount, path, content)
    descriptor = os.open(path, os.O_RDONLY)
    fcntl.ioctl(descriptor, IOC_DROP_CACHE)
    os.close(descriptor)
    assert cost_of_reading(mount, path, content) >= SIZE


def test_a_file_whose_pages_are_dropped_each_time_bypasses_the_page_cache_again(mount, path, content):
    def drop():
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)

    for _ in range(3):
        cost_of_reading(mount, path, content)
        drop()
    cost_of_reading(mount, path, content)
    assert cost_of_reading(mount, path, content) >= SIZE, "no pages were left by the read before"


def test_cache_never_reads_from_the_daemon_each_time(factory, content):
    mount = factory.mount(factory.store("128M"), "cache=never,threads=1")
    path = mount.path / "file"
    path.write_bytes(content)
    for _ in range(4):
        assert cost_of_reading(mount, path, content) >= SIZE


def test_a_directory_is_listed_again_without_asking_and_shows_every_change(mount, work):
    names = {f"file-{number:04}" for number in range(3000)}
    for name in names:
        (work / name).touch()
    assert set(os.listdir(work)) == names

    def asked():
        before = statistic(mount, REQUESTS)
        for _ in range(5):
            assert set(os.listdir(work)) == names
        return statistic(mount, REQUESTS) - before

    # A machine short of memory may drop pages meanwhile, so the measurement is repeated.
    assert any(asked() <= 5 * 4 + 8 for _ in range(20)), "opening and closing alone are asked for"
    (work / "new").touch()
    names.add("new")
    assert set(os.listdir(work)) == names
    os.rename(work / "new", work / "other")
    os.unlink(work / "file-0000")
    os.mkdir(work / "sub")
    names ^= {"new", "other", "file-0000", "sub"}
    assert set(os.listdir(work)) == names
    with os.scandir(work) as entries:
        next(entries)
        (work / "late").touch()
    assert set(os.listdir(work)) == names | {"late"}
