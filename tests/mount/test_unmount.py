# SPDX-License-Identifier: Apache-2.0
"""The end of a mount: SIGTERM, a busy mount, a store that vanishes, two concurrent mounts, devices."""

import contextlib
import errno
import os
import shutil
import signal
import subprocess
import sys
import threading

import pytest

from harness import needs, process
from harness.filesystems import is_mounted, program, umount_by_system, wait_until, wait_until_it_polls, weightfs
from harness.namespaces import unmount
from harness.syscalls import errno_of, sync_filesystem
from harness.tree import digests
from store_files import extents_of

pytestmark = pytest.mark.usefixtures("weightfs_only")
MIB = 1 << 20


@pytest.fixture
def mount(factory):
    return factory.mount(factory.store("128M"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_signal_unmounts_cleanly(mount, number):
    data, pid = os.urandom(6 * MIB), mount.pid
    (mount.path / "file").write_bytes(data)
    process.kill(pid, number)
    assert process.wait_gone(pid, 60) and not is_mounted(mount.path)
    mount.store.fsck()
    mount.mount()
    assert (mount.path / "file").read_bytes() == data
    mount.fsck()


def test_a_signal_ends_a_mount_in_use_too(mount):
    """The programs get an error, and everything they wrote is there."""
    pid, descriptor = mount.pid, os.open(mount.path / "file", os.O_RDWR | os.O_CREAT)
    os.write(descriptor, b"written before" * 1000)
    process.kill(pid, signal.SIGTERM)
    assert process.wait_gone(pid, 60)
    with pytest.raises(OSError):
        os.write(descriptor, b"x")
    try:
        os.close(descriptor)
    except OSError:
        pass
    mount.close()
    mount.store.fsck()
    mount.mount()
    assert (mount.path / "file").read_bytes() == b"written before" * 1000
    mount.fsck()


def test_foreground_mount_ends_with_exit_code_0(mount):
    mount.umount()
    started = subprocess.Popen([*mount.command(""), "-f"], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert wait_until(lambda: is_mounted(mount.path) or started.poll() is not None) and started.poll() is None
        (mount.path / "file").write_bytes(b"x")
        started.send_signal(signal.SIGTERM)
        process.finish(started)
    finally:
        started.kill()
        started.wait(timeout=60)
    mount.store.fsck()


def test_umount_waits_for_a_system_call_of_another_process(mount):
    """It is in use for a moment, by nothing that a table of processes shows."""
    pid = mount.pid
    process.kill(pid, signal.SIGSTOP)
    call = threading.Thread(target=os.statvfs, args=(mount.path,))
    call.start()
    try:
        unmounting = subprocess.Popen([program(), "umount", mount.path], stderr=subprocess.PIPE, text=True)
        wait_until_it_polls(unmounting, 3)
    finally:
        process.kill(pid, signal.SIGCONT)
        call.join()
    assert process.finish(unmounting).err == "" and not is_mounted(mount.path)
    mount.store.fsck()


def test_umount_while_busy_names_the_process(mount):
    (mount.path / "file").write_bytes(b"x")
    script = "import sys; f = open(sys.argv[1]); print('open', flush=True); sys.stdin.read()"
    holder = subprocess.Popen([sys.executable, "-c", script, mount.path / "file"], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "open\n"
        finished = weightfs("umount", mount.path, codes=None)
        assert finished.code not in (0, None) and str(holder.pid) in finished.err and "python" in finished.err
        assert is_mounted(mount.path) and (mount.path / "file").read_bytes() == b"x"
    finally:
        holder.communicate(timeout=60)
    mount.fsck()


def test_umount_returns_when_all_is_on_the_device(mount):
    data = os.urandom(40 * MIB)
    (mount.path / "file").write_bytes(data)
    weightfs("umount", mount.path)
    # A copy made right away is complete.
    copy = mount.store.directory.with_name("copy")
    shutil.copytree(mount.store.directory, copy)
    try:
        weightfs("verify", "--catalog", copy)
    finally:
        shutil.rmtree(copy)
    mount.mount()
    assert (mount.path / "file").read_bytes() == data
    mount.fsck()


def test_the_systems_own_umount_works_too(mount):
    if os.geteuid() != 0:
        pytest.skip("needs root: umount(8)")
    (mount.path / "file").write_bytes(b"text")
    pid = mount.pid
    # Unlike ours, it does not wait for a system call of another process.
    umount_by_system(mount.path)
    assert process.wait_gone(pid, 60)
    mount.store.fsck()
    mount.mount()
    assert (mount.path / "file").read_bytes() == b"text"
    mount.fsck()


def test_read_only_mount_changes_nothing(mount):
    (mount.path / "file").write_bytes(b"text" * 1000)
    mount.umount()
    before = digests(mount.store.directory)["pool"]
    mount.mount("ro")
    assert (mount.path / "file").read_bytes() == b"text" * 1000
    for act in (lambda: (mount.path / "new").touch(), lambda: (mount.path / "file").unlink(),
                lambda: (mount.path / "file").write_bytes(b"x"), lambda: os.mkdir(mount.path / "d"),
                lambda: os.chmod(mount.path / "file", 0o777), lambda: os.rename(mount.path / "file", mount.path / "b"),
                lambda: os.setxattr(mount.path / "file", "user.a", b"x")):
        with pytest.raises(OSError) as caught:
            act()
        assert caught.value.errno == errno.EROFS
    mount.umount()
    assert digests(mount.store.directory)["pool"] == before
    mount.mount("")
    mount.fsck()


VISIT = """
import os, sys
directory = sys.argv[1]
codes = []
def attempt(name, act):
    try:
        act()
        codes.append(f"{name}:0")
    except OSError as error:
        codes.append(f"{name}:{error.errno}")
attempt("read", lambda: open(f"{directory}/cold", "rb").read())
def write():
    with open(f"{directory}/new", "wb", buffering=0) as stream:
        stream.write(b"x" * (1 << 20))
        os.fsync(stream.fileno())
attempt("write", write)
attempt("list", lambda: os.listdir(directory))
print(" ".join(codes))
"""


@needs.loop_devices()
@pytest.mark.limit(240)
def test_store_whose_disk_vanishes_gives_errors_and_does_not_hang(factory, local):
    """The pool is on a device that is removed under the mount."""
    table = f"0 {(128 * MIB) // 512} linear"
    if process.run(["which", "dmsetup"], codes=None).code != 0 or process.run(["dmsetup", "version"], codes=None).code:
        pytest.skip("needs dmsetup and the device mapper: scripts/setup installs it")
    image = local / "image"
    with open(image, "wb") as stream:
        stream.truncate(128 * MIB)
    loop = process.run(["losetup", "--show", "-f", image]).out.strip()
    name = f"weightfs-test-{os.getpid()}"
    try:
        process.run(["dmsetup", "create", name, "--table", f"{table} {loop} 0"])
        mount = factory.mount(factory.store(devices=[f"/dev/mapper/{name}"]))
        (mount.path / "cold").write_bytes(os.urandom(40 * MIB))
        mount.remount()
        process.run(["dmsetup", "suspend", "--noflush", name])
        process.run(["dmsetup", "load", name, "--table", f"0 {(128 * MIB) // 512} error"])
        process.run(["dmsetup", "resume", name])
        said = process.run([sys.executable, "-c", VISIT, mount.path], limit=60, on_hang=mount.kill).out
        assert f"read:{errno.EIO}" in said and "write:0" not in said
        weightfs("umount", mount.path, codes=None, limit=60)
        mount.close()
    finally:
        process.run(["dmsetup", "remove", "--force", "--retry", name], codes=None)
        process.run(["losetup", "-d", loop], codes=None)


@needs.root
@pytest.mark.parametrize("reported", [False, True], ids=["nobody", "the writer"])
def test_the_end_of_the_mount_fails_with_an_error_that_no_program_has_received(factory, reported):
    """The pool has a hole under the blocks of a file, on a full filesystem, so it cannot be written."""
    small = factory.directory("small")
    process.run(["mount", "-t", "tmpfs", "-o", "size=80m,huge=never", "none", small])
    try:
        with open(small / "pool", "wb") as stream:
            stream.truncate(64 * MIB)
        store = factory.store(devices=[small / "pool"], sparse=False)
        mount = store.mount_at(factory.directory("mount"), factory.watchdog)
        with contextlib.closing(mount), process.Processes() as started:
            daemon = started.start([*mount.command(""), "-f"])
            assert wait_until(lambda: is_mounted(mount.path))
            path = mount.path / "file"
            with open(path, "wb") as stream:
                os.posix_fallocate(stream.fileno(), 0, 36864)
            extent = extents_of(path)[0]
            process.run(["fallocate", "--punch-hole", "--offset", str(extent["physical"]), "--length",
                         str(extent["length"]), small / "pool"])
            process.run(["dd", "if=/dev/zero", f"of={small}/filler", "bs=4k", "status=none"], codes=(1,))
            with open(path, "r+b") as stream:
                stream.write(b"x")   # the close returns before the device is written
            inode = path.stat().st_ino
            if reported:
                with open(path, "rb") as stream:
                    assert errno_of(os.fsync, stream.fileno()) == errno.EIO
            weightfs("umount", mount.path, codes=None)
            err = daemon.communicate(timeout=60)[1]
        assert (f"writes of inode {inode} have failed" in err) == (not reported), err
        assert daemon.returncode == (0 if reported else 1), err
    finally:
        process.run(["umount", "-l", small])


def test_store_whose_pool_is_cut_under_the_mount_gives_errors_and_does_not_hang(mount):
    (mount.path / "cold").write_bytes(os.urandom(40 * MIB))
    mount.remount()
    os.truncate(mount.store.directory / "pool", 0)
    said = process.run([sys.executable, "-c", VISIT, mount.path], limit=60, on_hang=mount.kill).out
    assert f"read:{errno.EIO}" in said
    process.run([program(), "umount", mount.path], codes=None, limit=60, on_hang=mount.kill)
    mount.close()


def test_store_whose_directory_is_removed_gives_errors_and_does_not_hang(mount):
    (mount.path / "warm").write_bytes(b"x")
    shutil.rmtree(mount.store.directory)
    process.run([sys.executable, "-c", VISIT, mount.path], limit=60, on_hang=mount.kill)
    process.run([program(), "umount", mount.path], codes=None, limit=60, on_hang=mount.kill)
    mount.close()


def test_two_concurrent_mounts(mount, factory):
    other = factory.mount(factory.store("64M"))
    data = os.urandom(3 * MIB)
    (mount.path / "file").write_bytes(data)
    process.run(["cp", mount.path / "file", other.path / "copy"])
    process.run(["mv", mount.path / "file", other.path / "moved"])
    for each in (mount, other):
        each.remount()
    assert (other.path / "copy").read_bytes() == (other.path / "moved").read_bytes() == data
    with pytest.raises(OSError) as caught:
        os.rename(other.path / "copy", mount.path / "copy")
    assert caught.value.errno == errno.EXDEV
    mount.fsck()
    other.fsck()


def use_several_devices(factory, store):
    mount = factory.mount(store)
    size = os.statvfs(mount.path)
    assert size.f_blocks * size.f_frsize > 240 * MIB
    data = os.urandom(150 * MIB)
    (mount.path / "large").write_bytes(data)
    for index in range(100):
        (mount.path / f"small-{index}").write_bytes(bytes([index]) * (index * 100 + 1))
    mount.remount()
    assert (mount.path / "large").read_bytes() == data
    assert all((mount.path / f"small-{index}").read_bytes() == bytes([index]) * (index * 100 + 1)
               for index in range(100))
    (mount.path / "large").unlink()
    (mount.path / "second").write_bytes(data[::-1])
    mount.kill9()
    mount.mount()
    descriptor = os.open(mount.path, os.O_RDONLY)
    sync_filesystem(descriptor)   # not sync(2), which waits for the mounts of all other tests
    os.close(descriptor)
    mount.fsck()


def test_store_on_two_files(factory, local):
    devices = [local / "first", local / "second"]
    for path in devices:
        with open(path, "wb") as stream:
            stream.truncate(160 * MIB)
    use_several_devices(factory, factory.store(devices=devices))
    # Large tensors are striped, so both devices have data.
    for path in devices:
        assert path.stat().st_blocks * 512 > 40 * MIB
    path = devices[1].rename(local / "away")
    finished = weightfs("mount", *[factory.directory("refused")] * 2, codes=None)
    assert finished.code != 0
    path.rename(devices[1])


@needs.loop_devices()
def test_store_on_two_loop_devices(factory, local):
    loops = []
    try:
        for name in ("first", "second"):
            with open(local / name, "wb") as stream:
                stream.truncate(160 * MIB)
            loops.append(process.run(["losetup", "--show", "-f", local / name]).out.strip())
        store = factory.store(devices=loops)
        use_several_devices(factory, store)
        # A device in use by one store must be refused to another one.
        mount = factory.mount(store)
        refused = weightfs("format", local / "other", "--device", loops[0], "--force", codes=None)
        assert refused.code != 0
        mount.fsck()
    finally:
        for loop in loops:
            process.run(["losetup", "-d", loop], codes=None)


@needs.root
def test_a_filesystem_that_is_mounted_over_the_mount_stays(mount):
    pid = mount.pid
    process.run(["mount", "-t", "tmpfs", "over", mount.path])
    try:
        (mount.path / "theirs").write_bytes(b"theirs")
        for options in ([], ["-l"], ["-f"]):
            refused = weightfs("umount", *options, mount.path, codes=(1,)).err
            assert "over (tmpfs) is mounted over the weightfs there" in refused and refused.count("\n") == 1
        assert (mount.path / "theirs").read_bytes() == b"theirs" and not process.wait_gone(pid, 0)
    finally:
        unmount(mount.path)
    mount.fsck()


def test_nohup_keeps_a_mount_from_ending_with_its_terminal(mount):
    mount.umount()
    started = subprocess.Popen(["nohup", *mount.command(""), "-f"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE, text=True)
    try:
        assert wait_until(lambda: is_mounted(mount.path) or started.poll() is not None)
        process.kill(started.pid, signal.SIGHUP)
        # Signals reach the same process in order: when the daemon obeys the second one, it has ignored the first.
        process.kill(started.pid, signal.SIGTERM)
        finished = process.finish(started)
        assert "Hangup" not in finished.err and "Terminated: unmounting" in finished.err
    finally:
        started.kill()
        started.wait()
        mount.close()
    mount.store.fsck()
