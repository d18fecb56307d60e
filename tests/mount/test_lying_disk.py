# SPDX-License-Identifier: Apache-2.0
"""Disks that lie or fail, by name, below a daemon: a read returns the right bytes or an error, and a write that did not
reach its place is found. tests/crash/device_faults_test.cc has every place; this is the real daemon with the kernel."""

import contextlib
import errno
import hashlib
import mmap
import os
import random
import signal
import struct
import sys

import pytest

import lease_client
from harness import process
from harness.filesystems import is_mounted, program, wait_until, weightfs
from harness.syscalls import errno_of
from store_files import extents_of

pytestmark = pytest.mark.usefixtures("weightfs_only")

# tests/support/lying_disk.cc
LIES = ["none", "lost write", "misdirected write", "torn write", "flipped write", "failed write", "misdirected read",
        "flipped read", "short read", "failed read", "stale read", "slow", "hang"]
WRITES, READS = LIES[1:6], LIES[6:11]
ALWAYS = 1 << 40
MARKER = b"it lies!"
MIB = 1 << 20
SIZES = {"large": 5 * MIB + 777, "middle": 300_000, "small": 4096, "tiny": 100}
DAMAGE = 4   # exit status of verify
LEASE = """
import sys, weightfs
with weightfs.Handle(direct="require") as handle:
    buffer = bytearray(int(sys.argv[2]))
    try:
        handle.read_async(buffer, sys.argv[1]).result()
        sys.stdout.buffer.write(buffer)
    except OSError as error:
        sys.exit(error.errno)
"""


class Disk:
    """The devices of a store, and what they do."""

    def __init__(self, directory):
        self.control = directory / "control"
        self.control.write_bytes(bytes(40))
        with open(self.control, "r+b") as file:
            self.numbers = mmap.mmap(file.fileno(), 40)

    @contextlib.contextmanager
    def lying(self, lie, times=ALWAYS, marker=b"", device=None):
        """`marker`: only writes that begin with it. `device`: only transfers of this one. A hang lasts until the end of
        the context, and a stale read returns what `remember` has found."""
        inode = device.stat().st_ino if device else 0
        self.numbers[:] = struct.pack("=QQQ8sQ", LIES.index(lie), times, 0, marker, inode)
        try:
            yield
        finally:
            self.numbers[:8] = bytes(8)

    def remember(self, devices):
        for device in devices:
            process.run(["cp", "--sparse=always", device, f"{device}.stale"])

    @property
    def told(self):
        return struct.unpack("=Q", self.numbers[16:24])[0]


@pytest.fixture
def disk(factory, monkeypatch):
    library = program().parent / "libweightfs_lying_disk.so"
    assert library.exists(), f"{library}: build the target weightfs_lying_disk"   # ld.so would go on without it
    disk = Disk(factory.directory("disk"))
    monkeypatch.setenv("LYING_DISK", str(disk.control))
    monkeypatch.setenv("LD_PRELOAD", str(library))
    return disk


@pytest.fixture
def mount(disk, factory):
    devices = [factory.directory("device") / "pool" for _ in range(2)]
    for device in devices:
        with open(device, "wb") as stream:
            stream.truncate(128 * MIB)
    return factory.mount(factory.store(devices=devices))


def content(seed, size, marker=b""):
    return (marker + random.Random(f"{seed}/{size}").randbytes(size))[:size]


def write(directory, seed, marker=b""):
    """Writes files of all sizes, syncs them, and returns their contents; those that got an error have two."""
    directory.mkdir(exist_ok=True)
    written = {}
    for name, size in SIZES.items():
        path = directory / name
        old = path.read_bytes() if path.exists() else None
        new = content(seed, size, marker)
        temporary = directory / f"{name}.tmp"
        failed = False
        descriptor = os.open(temporary, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        try:
            os.write(descriptor, new)
            os.fsync(descriptor)
        except OSError as error:
            assert error.errno in (errno.EIO, errno.EROFS)
            failed = True
        failed |= errno_of(os.close, descriptor) != 0
        if not failed:
            failed = errno_of(os.rename, temporary, path) != 0
        written[path] = (new, old) if failed else (new,)
    return written


def write_again(disk, mount):
    """Like write, after older contents of the same files, which the disk remembers. Their blocks are in use again."""
    write(mount.path / "files", "old")
    disk.remember(mount.store.devices)
    write(mount.path / "files", "newer")
    return write(mount.path / "files", "files")


def sync_directory(path):
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def read(path):
    """The content, or None if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        assert error.errno == errno.EIO
        return None


@pytest.mark.parametrize("lie", WRITES)
def test_data_that_did_not_reach_its_place_is_an_error(disk, mount, lie):
    before = write(mount.path / "before", "before")
    with disk.lying(lie, marker=MARKER):
        lied = write(mount.path / "lied", "lied", MARKER)
        os.sync()
        assert disk.told > 0
    after = write(mount.path / "after", "after")
    mount.remount()
    unreadable = set()
    for path, contents in {**before, **lied, **after}.items():
        got = read(path) if path.exists() else None
        if got is None:
            unreadable.add(path.parent.name)
        else:
            assert got in contents, path
    if lie == "failed write":
        assert unreadable <= {"lied"} and all(len(contents) == 2 for contents in lied.values())
        mount.fsck()
        return
    assert "lied" in unreadable and (unreadable == {"lied"} or lie == "misdirected write")
    mount.umount()
    found = weightfs("verify", mount.store.directory, codes=(DAMAGE,))
    assert "/lied/" in found.out + found.err


@pytest.mark.parametrize("lie", READS)
@pytest.mark.parametrize("times", [1, ALWAYS], ids=["once", "always"])
def test_a_read_returns_the_right_bytes_or_an_error(disk, mount, lie, times):
    files = write_again(disk, mount)
    mount.remount()
    fails = lie == "failed read" or (lie != "short read" and times > 1)   # a block that is not right is read again
    with disk.lying(lie, times):
        for path, (right,) in files.items():
            assert read(path) in ((right, None) if fails else (right,)), path
        assert disk.told > 0
        assert times == 1 or not fails or read(mount.path / "files/large") is None
    for path, (right,) in files.items():
        assert read(path) == right, "after a lie that is over"
    mount.fsck()


@pytest.mark.parametrize("lie", WRITES)
def test_a_disk_that_lies_about_everything_never_shows_wrong_bytes(disk, mount, lie):
    """The log lies, too. The daemon is killed, so that its index does not know more than the devices."""
    before = write(mount.path / "files", "before")
    mount.remount()
    with disk.lying(lie):
        written = write(mount.path / "files", "lied")
        assert disk.told > 0
        process.kill(mount.pid, signal.SIGKILL)
        assert wait_until(lambda: not mount.store.daemons())
    process.run(["umount", "-l", mount.path], codes=None)
    process.run(mount.command(""), codes=None)
    if not is_mounted(mount.path):
        assert "verify" in mount.store.log() or "recover" in mount.store.log()
        return
    for path, (old,) in before.items():
        got = read(path) if path.exists() else None
        assert got is None or got in (old, *written[path]), path


def test_a_log_that_is_read_as_it_was_is_reported(disk, mount):
    """To the store these are devices of which an older copy was put back, and the index knows more than they do."""
    old = write(mount.path / "files", "old")
    sync_directory(mount.path / "files")
    disk.remember(mount.store.devices)
    write(mount.path / "files", "new")
    sync_directory(mount.path / "files")
    mount.umount()
    with disk.lying("stale read"):
        reported = process.run(mount.command("")).err
        assert disk.told > 0
        assert "the index of the catalog is rebuilt" in reported and "the old index is in" in reported
        assert all(read(path) == right for path, (right,) in old.items())
        mount.umount()
    mount.fsck()


def test_a_slow_disk_delays_and_changes_nothing(disk, mount):
    with disk.lying("slow", 20):
        files = write(mount.path / "files", "slow")
        assert disk.told > 0
    mount.remount()
    with disk.lying("slow", 5):
        assert all(read(path) == right for path, (right,) in files.items())
    mount.fsck()


def test_a_disk_that_hangs_delays_nothing_of_the_other_one(disk, mount):
    files = {mount.path / f"file-{number}": content(number, SIZES["middle"]) for number in range(6)}
    for path, right in files.items():
        path.write_bytes(right)
    devices = {path: {extent["device"] for extent in extents_of(path)} for path in files}
    waiting, hot = [path for path in files if devices[path] == {0}][:2]
    mount.remount("cache_memory=64M")
    with process.Processes() as processes, open(hot, "rb") as file:
        os.close(lease_client.map_hot(file.fileno(), 0, SIZES["middle"]))
        with disk.lying("hang", device=mount.store.devices[0]):
            reader = processes.start(["sha256sum", waiting])
            assert wait_until(lambda: disk.told > 0)
            others = [path for path in files if devices[path] == {1}]
            assert others and all(read(path) == files[path] for path in others)
            memory = lease_client.map_hot(file.fileno(), 0, SIZES["middle"])
            assert os.pread(memory, SIZES["middle"], 0) == files[hot]
            os.close(memory)
            assert sorted(mount.path.iterdir()) == sorted(files)
            weightfs("info", mount.path)
            assert reader.poll() is None
        assert hashlib.sha256(files[waiting]).hexdigest() in process.finish(reader).out
    mount.fsck()


@pytest.mark.parametrize("how", ["fsync", "umount"])
def test_a_disk_that_hangs_delays_the_end_of(disk, mount, how):
    """What has ended is on the devices."""
    mount.remount("commit=3600")
    files = {mount.path / name: content("hang", size) for name, size in SIZES.items()}
    for path, right in files.items():
        path.write_bytes(right)
    umount = [program(), "umount", mount.path]
    with process.Processes() as processes:
        with disk.lying("hang"):
            running = processes.start(umount if how == "umount" else ["sync", *files])
            assert wait_until(lambda: disk.told > 0)
            if how == "fsync":
                weightfs("info", mount.path)
            else:
                assert "waiting" in running.stderr.readline()
            assert running.poll() is None
        process.finish(running)
    if how == "fsync":
        mount.kill9()
    mount.mount("")
    assert all(read(path) == right for path, right in files.items())
    mount.fsck()


@pytest.mark.parametrize("lie", READS)
def test_a_program_that_reads_the_disk_itself_gets_the_right_bytes_or_an_error(disk, mount, lie):
    pytest.importorskip("weightfs")
    files = write_again(disk, mount)
    large = mount.path / "files/large"
    with disk.lying(lie):
        done = process.run([sys.executable, "-c", LEASE, large, SIZES["large"]], codes=(0, errno.EIO), text=False)
        assert disk.told > 0
    assert done.out == files[large][0] if lie == "short read" else done.code == errno.EIO
