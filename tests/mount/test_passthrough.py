# SPDX-License-Identifier: Apache-2.0
"""Files that nobody can change: once all of one is in hot memory, the kernel reads and maps it without the daemon."""

import contextlib
import ctypes
import errno
import json
import mmap
import os
import platform
import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import store_files
from harness import process
from harness.filesystems import wait_until, weightfs
from harness.machine import meminfo, without_huge_pages
from harness.syscalls import errno_of

pytestmark = pytest.mark.usefixtures("weightfs_only")
STORE_SIZE = "512M"
MIB = 1 << 20
SIZE = 9 * MIB + 1234


def information(mount):
    return json.loads(weightfs("info", "--json", mount).out)


def read_by_the_daemon(mount):
    """Bytes of files that the daemon has read for programs."""
    return information(mount)["statistics"]["read_bytes"]


def publish(directory, *options, code=0):
    return weightfs("publish", *options, directory, codes=(code,))


def needs_passthrough(path):
    """Skips on a kernel without it: before Linux 6.9, or for a mount of an ordinary user."""
    newer = tuple(int(part) for part in platform.release().split(".")[:2]) >= (6, 9)
    if not newer or os.geteuid() != 0:
        pytest.skip("the kernel has no FUSE passthrough for this user")
    assert information(path)["hot"]["limit"] > 0


@pytest.fixture
def made(factory):
    mount = factory.mount(factory.store(STORE_SIZE), "cache_memory=128M")
    needs_passthrough(mount.path)
    (mount.path / "model").mkdir()
    return mount


@pytest.fixture
def data():
    return random.Random(1).randbytes(SIZE)


@pytest.fixture
def hot(made, data):
    """A file of a published directory that was read before."""
    path = made.path / "model/weights"
    path.write_bytes(data)
    publish(path.parent)
    assert path.read_bytes() == data
    return path


def test_a_file_that_was_read_is_read_again_without_the_daemon(hot, made, data):
    before = read_by_the_daemon(made.path)
    assert hot.read_bytes() == data
    assert read_by_the_daemon(made.path) == before
    assert information(made.path)["hot"]["used"] >= SIZE


def test_a_published_file_that_was_read_before_is_hot_too(made, data):
    path = made.path / "model/weights"
    path.write_bytes(data)
    os.sync()
    weightfs("info", made.path)
    assert path.read_bytes() == data, "the daemon has it in its read-ahead cache now"
    publish(path.parent)
    assert path.read_bytes() == data
    assert information(made.path)["hot"]["used"] >= SIZE
    before = read_by_the_daemon(made.path)
    assert path.read_bytes() == data and read_by_the_daemon(made.path) == before


@pytest.mark.alone
def test_a_file_is_read_again_without_the_daemon_and_without_huge_pages(made, data):
    path = made.path / "model/weights"
    path.write_bytes(data)
    publish(path.parent)
    with without_huge_pages():
        huge = meminfo("ShmemHugePages")
        assert path.read_bytes() == data
        before = read_by_the_daemon(made.path)
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ) as mapped:
            assert file.read() == data and mapped[:] == data
        assert read_by_the_daemon(made.path) == before
        assert information(made.path)["hot"]["used"] >= SIZE and meminfo("ShmemHugePages") == huge


def test_every_way_of_reading_returns_the_content(hot, data, tmp_path):
    with open(hot, "rb", buffering=0) as file:
        number = file.fileno()
        assert os.fstat(number).st_size == SIZE
        assert os.pread(number, 100, SIZE - 50) == data[-50:]
        assert os.pread(number, 100, SIZE) == b""
        assert os.lseek(number, 0, os.SEEK_DATA) == 0 and os.lseek(number, 0, os.SEEK_HOLE) == SIZE
        os.lseek(number, 0, os.SEEK_SET)
        for kind in (mmap.MAP_SHARED, mmap.MAP_PRIVATE):
            with mmap.mmap(number, 0, kind, mmap.PROT_READ) as mapped:
                assert mapped[:] == data
        with mmap.mmap(number, 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE) as own:
            own[:4] = b"mine"
            assert own[:] == b"mine" + data[4:] and os.pread(number, 4, 0) == data[:4]
        assert errno_of(lambda: mmap.mmap(number, 0, mmap.MAP_SHARED, mmap.PROT_WRITE)) == errno.EACCES
        with open(tmp_path / "sent", "w+b") as other:
            assert os.sendfile(other.fileno(), number, 0, SIZE) == SIZE
            other.seek(0)
            assert other.read() == data
        with open(hot.parent.parent / "copied", "w+b") as other:
            os.copy_file_range(number, other.fileno(), SIZE)
        assert hot.parent.parent.joinpath("copied").read_bytes() == data
    direct = os.open(hot, os.O_RDONLY | os.O_DIRECT)
    with mmap.mmap(-1, MIB) as aligned:
        assert os.preadv(direct, [aligned], MIB) == MIB and aligned[:] == data[MIB:2 * MIB]
    os.close(direct)


def test_a_mapping_outlives_its_descriptor(hot, made, data):
    with open(hot, "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ)
    before = read_by_the_daemon(made.path)
    assert mapped[:] == data and read_by_the_daemon(made.path) == before
    mapped.close()


def test_opens_of_all_kinds_at_once_never_fail(made, data):
    """While one thread after another reads the file, it becomes hot, and the mode of the next open differs."""
    path = made.path / "model/weights"
    path.write_bytes(data)
    publish(path.parent)
    failures = []

    def use(seed):
        choice = random.Random(seed)
        try:
            for _ in range(40):
                with open(path, "rb", buffering=0) as file:
                    at = choice.randrange(SIZE)
                    if choice.random() < 0.5:
                        with mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ) as mapped:
                            assert mapped[at:at + 5000] == data[at:at + 5000]
                    else:
                        assert os.pread(file.fileno(), MIB, at) == data[at:at + MIB]
                if choice.random() < 0.1:
                    assert path.read_bytes() == data
        except BaseException as error:
            failures.append(repr(error))

    threads = [threading.Thread(target=use, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_what_is_open_stays_published(hot, made, data):
    with open(hot, "rb") as file:
        refused = publish(hot.parent, "--undo", code=1)
        assert "weights: read from hot memory by a program" in refused.err
        assert errno_of(lambda: os.truncate(hot, 0)) == errno.EPERM
        assert file.read() == data
    publish(hot.parent, "--undo")
    hot.write_bytes(b"new")
    assert hot.read_bytes() == b"new"
    publish(hot.parent)
    assert hot.read_bytes() == b"new"


def test_a_mapping_counts_as_open(hot, data):
    """The kernel does not say that a file is mapped whose last descriptor is closed."""
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    library.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    with open(hot, "rb") as file:
        address = library.mmap(None, SIZE, mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), 0)
    publish(hot.parent, "--undo", code=1)
    assert ctypes.string_at(address, SIZE) == data
    assert library.munmap(address, SIZE) == 0
    publish(hot.parent, "--undo")
    hot.write_bytes(b"new")
    assert hot.read_bytes() == b"new"


def test_what_is_on_its_way_in_a_pipe_stays_as_it_was(made):
    """splice(2) puts pages of hot memory into a pipe, not copies of them. They never get other content."""
    paths = [made.path / "model" / str(number) for number in range(16)]
    for number, path in enumerate(paths):
        path.write_bytes(bytes([number + 1]) * SIZE)
    publish(made.path / "model")
    assert paths[0].read_bytes() == b"\1" * SIZE
    reading, writing = os.pipe()
    with open(paths[0], "rb") as file:
        assert os.splice(file.fileno(), writing, 1 << 16, offset_src=MIB) > 0
    for _ in range(2):
        for number, path in enumerate(paths[1:], 2):
            assert path.read_bytes() == bytes([number]) * SIZE
    assert information(made.path)["hot"]["evictions"] > 0
    assert set(os.read(reading, 1 << 16)) == {1}
    os.close(reading)
    os.close(writing)


def test_a_reader_from_before_the_publication_reads_on(made, data):
    path = made.path / "model/weights"
    path.write_bytes(data)
    with open(path, "rb") as early:
        mapped = mmap.mmap(early.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ)
        assert mapped[:10] == data[:10]
        publish(path.parent)
        for _ in range(3):
            assert path.read_bytes() == data
        assert early.read() == data and mapped[:] == data
        mapped.close()
    assert path.read_bytes() == data
    before = read_by_the_daemon(made.path)
    assert path.read_bytes() == data and read_by_the_daemon(made.path) == before


def test_a_read_only_mount_needs_no_publication(factory, data):
    mount = factory.mount(factory.store(STORE_SIZE))
    needs_passthrough(mount.path)
    (mount.path / "file").write_bytes(data)
    mount.umount()
    mount.mount("ro,cache_memory=128M")
    assert (mount.path / "file").read_bytes() == data
    before = read_by_the_daemon(mount.path)
    assert (mount.path / "file").read_bytes() == data and read_by_the_daemon(mount.path) == before


@pytest.mark.parametrize("options", ["without=passthrough", "cache_memory=0", "cache_memory=16M"])
def test_without_it_the_daemon_reads(factory, data, options):
    """By option, without hot memory, or for a file that would take more than half of it."""
    mount = factory.mount(factory.store(STORE_SIZE), options)
    path = mount.path / "model/weights"
    path.parent.mkdir()
    path.write_bytes(data)
    publish(path.parent)
    for _ in range(2):
        before = read_by_the_daemon(mount.path)
        assert path.read_bytes() == data
    assert read_by_the_daemon(mount.path) > before
    with open(path, "rb"):
        publish(path.parent, "--undo")


@pytest.mark.parametrize("options, most", [("cache_memory=128M", 1), ("cache_memory=128M,without=passthrough", 2)])
def test_a_mount_can_be_below_so_many_overlays(factory, local, options, most):
    if "overlay" not in Path("/proc/filesystems").read_text(encoding="utf-8").split():
        pytest.skip("needs overlayfs: the kernel has none")
    mount = factory.mount(factory.store(STORE_SIZE), options)
    needs_passthrough(mount.path)
    (mount.path / "file").write_bytes(b"content")
    with contextlib.ExitStack() as mounted:
        below = mount.path
        for depth in range(1, 4):
            above, empty = local / f"above{depth}", local / f"empty{depth}"
            above.mkdir()
            empty.mkdir()
            call = ["mount", "-t", "overlay", "overlay", "-o", f"lowerdir={below}:{empty}", above]
            if process.run(call, codes=None).code != 0:
                break
            mounted.callback(process.run, ["umount", above])
            assert (above / "file").read_bytes() == b"content"
            below = above
        assert depth - 1 == most


def test_a_writable_file_is_never_read_past_its_changes(made, data):
    path = made.path / "file"
    path.write_bytes(data)
    for number in range(5):
        assert path.read_bytes()[10:] == data[10:]
        with open(path, "r+b") as file:
            file.write(bytes([number]) * 10)
        assert path.read_bytes()[:10] == bytes([number]) * 10


def test_damage_is_an_error_each_time(factory, data):
    mount = factory.mount(factory.store(STORE_SIZE), "cache_memory=128M")
    needs_passthrough(mount.path)
    path = mount.path / "model/weights"
    path.parent.mkdir()
    path.write_bytes(data)
    publish(path.parent)
    place = store_files.extents_of(path)[0]["physical"] + 5 * MIB
    mount.umount()
    store_files.flip(mount.store.directory / "pool", place)
    mount.mount()
    with open(path, "rb", buffering=0) as file:
        for at in range(0, SIZE, MIB):   # the first reads of two pieces wait for one device read
            if at == 5 * MIB:
                assert errno_of(lambda: os.pread(file.fileno(), MIB, 5 * MIB)) == errno.EIO
            else:
                assert os.pread(file.fileno(), MIB, at) == data[at:at + MIB]
    for _ in range(3):
        assert errno_of(path.read_bytes) == errno.EIO
        with open(path, "rb", buffering=0) as file:
            assert os.pread(file.fileno(), 4096, 5 * MIB - 4096) == data[5 * MIB - 4096:5 * MIB]
            assert errno_of(lambda: os.pread(file.fileno(), 4096, 5 * MIB)) == errno.EIO


def test_the_memory_of_files_that_are_not_open_goes_to_others(made, data):
    """Fifteen files take more than there is."""
    paths = [made.path / "model" / str(number) for number in range(15)]
    for number, path in enumerate(paths):
        path.write_bytes(bytes([number]) + data)
    publish(made.path / "model")
    with contextlib.ExitStack() as stack:
        kept = stack.enter_context(open(paths[0], "rb"))
        paths[1].read_bytes()
        held = stack.enter_context(open(paths[1], "rb"))
        for _ in range(2):
            for number, path in enumerate(paths):
                assert path.read_bytes() == bytes([number]) + data
        assert kept.read() == b"\0" + data and held.read() == b"\1" + data
    found = information(made.path)["hot"]
    assert found["evictions"] > 0 and found["used"] <= found["limit"] == 128 * MIB


def test_programs_that_map_a_file_keep_it_when_the_daemon_is_killed(hot, made, data):
    script = "import mmap, sys; f = open(sys.argv[1], 'rb'); m = mmap.mmap(f.fileno(), 0, mmap.MAP_SHARED, 1); " \
             "print('mapped', flush=True); sys.stdin.readline(); sys.stdout.buffer.write(m[:])"
    command = [sys.executable, "-c", script, hot]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        assert program.stdout.readline() == b"mapped\n"
        made.kill9()
        assert program.communicate(b"\n")[0] == data
    assert wait_until(lambda: made.pid == 0)
    made.mount()
    assert hot.read_bytes() == data
