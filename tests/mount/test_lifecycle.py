# SPDX-License-Identifier: Apache-2.0
"""From mount to unmount: signals, a busy mount, a dead one, helpers of mount(8), an unused mount.

Whatever happens to the store, commands end: each has a time limit here."""

import errno
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import store_files
from harness import namespaces, needs, process
from harness.filesystems import is_mounted, program, umount_by_system, wait_until, weightfs
from harness.syscalls import errno_of, sync_filesystem
from store_files import data_of, devices_of, unchanged

pytestmark = pytest.mark.usefixtures("weightfs_only")

MIB = 1 << 20


def is_clean(store):
    copies = [store_files.read_at(path, 0, store_files.SUPERBLOCK_SIZE) for path in devices_of(store)]
    return all(store_files.superblock_field(copy, store_files.FLAGS) & store_files.CLEAN for copy in copies)


@pytest.fixture
def mount(factory):
    return factory.mount(factory.store("128M"))


class Program:
    """A Python program that uses the mount until it is told to end. `ready` is set once it does."""

    def __init__(self, code, *arguments, **options):
        code = f"import mmap, os, sys\n{code}\nprint('ready', flush=True)\nsys.stdin.read()\n"
        self._process = subprocess.Popen([sys.executable, "-c", code, *map(str, arguments)], text=True,
                                         stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)
        self.pid = self._process.pid
        assert self._process.stdout.readline() == "ready\n", self._process.communicate(timeout=30)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        process.finish(self._process, codes=None)


# Signals.
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_unmounts_cleanly(mount, number):
    data = data_of(1, 20 * MIB + 5)
    with open(mount.path / "file", "wb", buffering=0) as stream:
        for start in range(0, len(data), MIB):
            stream.write(data[start:start + MIB])
        os.fchmod(stream.fileno(), 0o640)
    pid = mount.pid
    process.kill(pid, number)
    assert process.wait_gone(pid)
    assert not is_mounted(mount.path)
    assert "everything is on the device" in mount.store.log()
    assert is_clean(mount.store)
    mount.mount()
    assert (mount.path / "file").read_bytes() == data
    mount.fsck()


@pytest.mark.parametrize("fault", ["SIGSEGV", "SIGABRT"])
def test_a_daemon_that_ends_by_a_fault_says_so_in_the_log(mount, fault):
    if {"asan", "tsan"} & set(Path(program()).parts):
        pytest.skip("sanitizers report faults in their own way")
    data = data_of(3, 3 * MIB)
    with open(mount.path / "file", "wb", buffering=0) as stream:
        stream.write(data)
        os.fsync(stream.fileno())
    pid = mount.pid
    os.kill(pid, getattr(signal, fault))
    assert process.wait_gone(pid)
    log = mount.store.log()
    assert f"weightfs: critical: killed by {fault}; please report the lines below." in log
    assert re.search(r"weightfs\(.*\) ?\[0x", log.partition("killed by")[2]), "and the calls that led there"
    mount.mount()
    assert (mount.path / "file").read_bytes() == data
    mount.fsck()


def test_a_signal_while_a_file_is_open_keeps_what_was_written(mount):
    data = data_of(2, 5 * MIB)
    descriptor = os.open(mount.path / "file", os.O_CREAT | os.O_WRONLY, 0o644)
    try:
        assert os.write(descriptor, data) == len(data)
        pid = mount.pid
        mount.terminate()
        assert process.wait_gone(pid)
        with pytest.raises(OSError):
            os.write(descriptor, b"x")
    finally:
        with pytest.raises(OSError):
            os.close(descriptor)
    assert not is_mounted(mount.path)
    assert is_clean(mount.store)
    mount.mount()
    assert (mount.path / "file").read_bytes() == data
    mount.fsck()


def test_a_signal_while_programs_write(mount):
    """Ends a mount under load: the daemon ends, the programs get errors, and the store is clean."""
    # Uses the directory's descriptor, because the path refers to the directory below once the mount is gone.
    endless = ("root = os.open(sys.argv[1], os.O_RDONLY)\n"
               "print('ready', flush=True)\n"
               "try:\n"
               "    while True:\n"
               "        file = os.open(sys.argv[2], os.O_CREAT | os.O_TRUNC | os.O_WRONLY, dir_fd=root)\n"
               "        for _ in range(8): os.write(file, bytes(1 << 20))\n"
               "        os.close(file)\n"
               "except OSError:\n"
               "    os._exit(0)\n")
    with Program(endless, mount.path, "one"), Program(endless, mount.path, "two"):
        # Both programs are writing.
        assert wait_until(lambda: all((mount.path / name).exists() for name in ("one", "two")))
        pid = mount.pid
        mount.terminate()
        assert process.wait_gone(pid)
    assert not is_mounted(mount.path)
    assert is_clean(mount.store)
    mount.mount()
    mount.fsck()


def test_in_the_foreground(factory):
    store, path = factory.store("64M"), factory.directory("foreground")
    daemon = subprocess.Popen([program(), "mount", store.directory, path, "-f"], stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert wait_until(lambda: is_mounted(path) or daemon.poll() is not None)
        (path / "file").write_bytes(b"content")
        daemon.send_signal(signal.SIGINT)
        finished = process.finish(daemon)
    finally:
        process.kill(daemon.pid)
    assert not is_mounted(path)
    assert "everything is on the device" in finished.out + finished.err
    assert not (store.directory / "weightfs.log").exists(), "a mount in the foreground logs to the terminal"
    mount = factory.mount(store)
    assert (mount.path / "file").read_bytes() == b"content"


def test_the_daemon_keeps_no_terminal_and_no_working_directory(mount):
    assert os.readlink(f"/proc/{mount.pid}/cwd") == "/"
    assert {os.readlink(f"/proc/{mount.pid}/fd/{number}") for number in (0, 1)} == {"/dev/null"}
    assert os.readlink(f"/proc/{mount.pid}/fd/2") == str(mount.store.directory / "weightfs.log")
    assert os.getsid(mount.pid) == mount.pid


# Unmounting.
HOLDERS = {"an open file": "file = open(sys.argv[1])",
           "a working directory": "os.chdir(os.path.dirname(sys.argv[1]))",
           "a mapping": "file = open(sys.argv[1], 'r+b')\nmapping = mmap.mmap(file.fileno(), 0)\nfile.close()\n"
                        "mapping[0:3] = b'new'"}


@pytest.mark.parametrize("holder", HOLDERS)
def test_umount_of_a_busy_mount_names_the_users_and_changes_nothing(mount, holder):
    (mount.path / "file").write_bytes(b"old content")
    with Program(HOLDERS[holder], mount.path / "file") as busy:
        finished = weightfs("umount", mount.path, codes=(1,))
        lines = finished.err.splitlines()
        assert "in use by 1 process" in lines[0] and str(mount.path) in lines[0], finished
        assert any(str(busy.pid) in line and "python" in line and str(mount.path) in line for line in lines[1:]), finished
        assert mount.alive()
        assert (mount.path / "file").read_bytes().endswith(b" content")
    mount.umount()
    mount.mount()
    expected = b"new content" if holder == "a mapping" else b"old content"
    assert (mount.path / "file").read_bytes() == expected
    mount.fsck()


def test_umount_returns_when_everything_is_on_the_device(mount):
    for number in range(5):
        data = data_of(number, 30 * MIB)
        with open(mount.path / "file", "wb", buffering=0) as stream:
            for start in range(0, len(data), MIB):
                stream.write(data[start:start + MIB])
        weightfs("umount", mount.path)
        with open(mount.store.directory / "lock", "r+b") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            assert lock.read() == b""
        assert is_clean(mount.store)
        mount.mount()
        assert (mount.path / "file").read_bytes() == data


@needs.root
def test_the_systems_umount_works_too(mount):
    data = data_of(1, 3 * MIB)
    (mount.path / "file").write_bytes(data)
    pid = mount.pid
    umount_by_system(mount.path)
    # Possible at once: mount waits for the previous daemon, which may still be writing.
    mount.mount()
    assert process.wait_gone(pid)
    assert (mount.path / "file").read_bytes() == data
    mount.fsck()


def test_mounting_and_unmounting_again_and_again(mount):
    for number in range(10):
        (mount.path / f"file-{number}").write_bytes(data_of(number, 1000))
        mount.remount()
    assert all((mount.path / f"file-{number}").read_bytes() == data_of(number, 1000) for number in range(10))
    mount.fsck()


# After a crash.
def kill_with_synced_file(mount):
    """Kills only the process: its mount stays, dead."""
    with open(mount.path / "file", "wb", buffering=0) as stream:
        stream.write(b"content")
        os.fsync(stream.fileno())
    pid = mount.pid
    process.kill(pid)
    assert process.wait_gone(pid)


def test_umount_removes_a_dead_mount(mount):
    kill_with_synced_file(mount)
    with pytest.raises(OSError) as dead:
        os.listdir(mount.path)
    assert dead.value.errno == errno.ENOTCONN
    finished = weightfs("umount", mount.path)
    assert "had already ended" in finished.err
    assert not is_mounted(mount.path)
    mount.mount()
    assert (mount.path / "file").read_bytes() == b"content"


def test_a_dead_mount_is_replaced_by_the_next_mount(mount):
    kill_with_synced_file(mount)
    assert not is_clean(mount.store)
    mount.mount()
    assert (mount.path / "file").read_bytes() == b"content"
    mount.umount()
    assert not is_mounted(mount.path), "the dead mount is still below"
    mount.fsck()


@pytest.mark.parametrize("command", [["verify", "--catalog"], ["verify", "--catalog", "--repair"], ["info"]],
                         ids=" ".join)
def test_commands_right_after_a_kill_wait_for_the_end_of_the_daemon(mount, command):
    """The process is still exiting, with transfers under way: its locks are released one by one."""
    for _ in range(5):
        descriptor = os.open(mount.path / "file", os.O_CREAT | os.O_WRONLY, 0o644)
        os.write(descriptor, data_of(1, 16 * MIB))
        process.kill(mount.pid)
        weightfs(command[0], mount.store.directory, *command[1:])
        with pytest.raises(OSError):
            os.close(descriptor)
        mount.detach()
        mount.mount()
    mount.fsck()


def test_a_store_that_was_not_unmounted_says_so_until_it_is(mount):
    def told():
        info, checked = (json.loads(weightfs(*command, mount.store.directory, "--json").out)
                         for command in (("info",), ("verify", "--catalog")))
        assert checked["clean"], "nothing is wrong with it"
        assert info["clean_unmount"] == checked["clean_unmount"]
        return info["clean_unmount"]

    def warnings():
        return (mount.store.directory / "weightfs.log").read_text().count("was not unmounted cleanly; recovered")

    assert warnings() == 0
    assert json.loads(weightfs("info", mount.store.directory, "--json").out)["clean_unmount"] is None
    kill_with_synced_file(mount)
    weightfs("umount", mount.path)
    assert told() is False
    assert "was not unmounted cleanly" in weightfs("info", mount.store.directory).out
    assert "was not unmounted cleanly" in weightfs("verify", "--catalog", mount.store.directory).out
    mount.mount()
    assert warnings() == 1
    mount.remount()
    assert warnings() == 1
    mount.umount()
    assert told() is True
    assert "was not unmounted" not in weightfs("info", mount.store.directory).out + weightfs(
        "verify", "--catalog", mount.store.directory).out


# Read-only.
def write_errnos(path):
    """The result of each kind of change, as a list, because some calls may wrongly succeed."""
    changes = {
        "create": lambda: open(path / "new", "wb"),
        "open": lambda: open(path / "file", "r+b"),
        "truncate": lambda: os.truncate(path / "file", 0),
        "unlink": lambda: os.unlink(path / "file"),
        "rename": lambda: os.rename(path / "file", path / "other"),
        "link": lambda: os.link(path / "file", path / "other"),
        "symlink": lambda: os.symlink("x", path / "other"),
        "mkdir": lambda: os.mkdir(path / "other"),
        "rmdir": lambda: os.rmdir(path / "folder"),
        "mknod": lambda: os.mkfifo(path / "other"),
        "chmod": lambda: os.chmod(path / "file", 0o600),
        "chown": lambda: os.chown(path / "file", 1, 1),
        "utime": lambda: os.utime(path / "file"),
        "setxattr": lambda: os.setxattr(path / "file", "user.name", b"value"),
    }
    return {name: errno_of(change) for name, change in changes.items()}


@pytest.mark.parametrize("options", ["ro", "ro,commit=1"])
def test_a_read_only_mount_changes_nothing(mount, options):
    (mount.path / "file").write_bytes(data_of(1, 3 * MIB))
    (mount.path / "folder").mkdir()
    mount.umount()
    pool, description = mount.store.directory / "pool", mount.store.directory / "store.json"
    with unchanged(pool, description):
        mount.mount(options)
        assert set(write_errnos(mount.path).values()) == {errno.EROFS}, write_errnos(mount.path)
        assert (mount.path / "file").read_bytes() == data_of(1, 3 * MIB)
        assert os.statvfs(mount.path).f_flag & os.ST_RDONLY
        with open(mount.path / "file", "rb") as stream:
            sync_filesystem(stream.fileno())
        mount.umount()
    mount.mount("")
    assert sorted(os.listdir(mount.path)) == ["file", "folder"]


def test_a_read_only_mount_of_a_store_that_crashed(mount):
    data = data_of(1, 3 * MIB)
    with open(mount.path / "file", "wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
    mount.kill9()
    with unchanged(mount.store.directory / "pool"):
        mount.mount("ro")
        assert (mount.path / "file").read_bytes() == data
        mount.umount()
    mount.mount("")
    assert (mount.path / "file").read_bytes() == data
    mount.fsck()


# mount(8), fstab and the names of the helpers.
@pytest.fixture
def helpers(factory):
    directory = factory.directory("helpers")
    for name in ("mount.weightfs", "mount.fuse.weightfs", "umount.weightfs", "fsck.weightfs"):
        (directory / name).symlink_to(program().resolve())
    return directory


def held_by(store):
    text = (store.directory / "lock").read_text().partition("\n")[0]
    return int(text) if text.isdigit() else 0


@pytest.mark.parametrize("name", ["mount.weightfs", "mount.fuse.weightfs"])
def test_called_as_the_helper_of_mount(factory, helpers, name):
    store, path = factory.store("64M"), factory.directory("point")
    process.run([helpers / name, store.directory, path, "-o", "rw,noatime,nofail,x-systemd.automount,commit=2"])
    try:
        (path / "file").write_bytes(b"content")
        process.run([helpers / "umount.weightfs", path])
        assert not is_mounted(path)
        process.run([helpers / "fsck.weightfs", "-a", store.directory])
        process.run([helpers / name, store.directory, path, "-o", "ro", "-t", "fuse.weightfs"])
        assert (path / "file").read_bytes() == b"content"
        assert set(write_errnos(path).values()) == {errno.EROFS}
    finally:
        weightfs("umount", path, codes=None)
        process.kill(held_by(store)) if held_by(store) else None


@needs.root
@needs.program("mount")
@pytest.mark.parametrize("kind", ["fuse.weightfs", "weightfs"])
def test_mounted_by_mount_and_fstab(factory, helpers, local, scratch, kind):
    """Runs in a separate mount namespace, with the helpers mounted over /usr/sbin, so the machine is unchanged."""
    store, path, fstab = factory.store("64M"), factory.directory("point"), local / "fstab"
    fstab.write_text(f"{store.directory} {path} {kind} defaults,noatime,commit=3,nofail 0 0\n")
    script = (f"mount -t {kind} -o commit=2 {store.directory} {path}\n"
              f"findmnt -n -o FSTYPE {path}\n"
              f"echo content > {path}/file\n"
              f"umount {path}\n"
              f"mount -T {fstab} {path}\n"
              f"cat {path}/file\n"
              f"umount {path}\n")
    sbin = os.path.realpath("/sbin")
    with namespaces.own_mounts(own=scratch):
        try:
            namespaces.mount("overlay", sbin, "overlay", options=f"lowerdir={helpers}:{sbin}")
        except OSError as error:
            pytest.skip(f"needs overlayfs, which this machine does not allow: {error}")
        finished = process.run(["sh", "-ec", script])
    assert finished.out.split() == ["fuse.weightfs", "content"], finished
    mount = factory.mount(store)
    assert (mount.path / "file").read_text() == "content\n"


# An unused mount.
def ticks(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


def test_an_idle_daemon_uses_no_processor(mount):
    for number in range(50):
        (mount.path / f"file-{number}").write_bytes(data_of(number, 100_000))
        (mount.path / f"file-{number}").read_bytes()
    mount.remount()
    os.listdir(mount.path)
    pid = mount.pid

    def used():
        before = ticks(pid)
        # This event must not occur: the end of the daemon.
        assert not process.wait_gone(pid, 3)
        return ticks(pid) - before

    # A slow machine needs a while to finish everything that the mount started.
    assert any(used() <= 1 for _ in range(5))
