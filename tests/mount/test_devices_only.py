# SPDX-License-Identifier: Apache-2.0
"""A store is its devices: commands take them as STORE, and no directory of another machine is needed."""

import contextlib
import fcntl
import json
import os
import re
import shutil
import signal
import stat
import subprocess
from pathlib import Path

import pytest

from device_stores import DeviceStore, own_cache
from harness import namespaces, needs, process
from harness.filesystems import is_mounted, program, weightfs
from store_files import ROOT_OFFSETS, SUPERBLOCK_OFFSETS, data_of, patch

pytestmark = pytest.mark.usefixtures("weightfs_only")

MIB = 1 << 20
DATA = data_of(5, 3 * MIB + 17)


@pytest.fixture
def cache(scratch, monkeypatch, factory):
    """The usual directory of indexes. Every mount of the test is in a namespace of its own."""
    with own_cache(scratch, monkeypatch, factory.directory("cache")) as folder:
        mark = factory.mark()
        yield folder
        factory.close(mark)


def new_store(factory, local, count=1, index=None):
    return factory.adopt(DeviceStore([local / f"device{number}" for number in range(count)], index, "64M"))


def fill(mount):
    (mount.path / "d").mkdir()
    (mount.path / "d/file").write_bytes(DATA)
    return mount


def bytes_read(pid):
    """From devices, by a process; 0 if it has ended."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return int(re.search(r"^read_bytes: (\d+)", Path(f"/proc/{pid}/io").read_text(), re.M)[1])
    return 0


def check(mount):
    assert (mount.path / "d/file").read_bytes() == DATA
    return mount


@pytest.mark.parametrize("count", [1, 2])
def test_a_store_moves_with_its_devices(factory, local, cache, count):
    store = new_store(factory, local, count)
    mount = fill(factory.mount(store))
    index = next(cache.iterdir())
    assert {"store.json", "lock", "meta", "weightfs.log"} <= set(os.listdir(index))
    assert [stat.S_IMODE(path.stat().st_mode) for path in (cache, index)] == [0o700] * 2
    mount.umount()
    store.index = local / "another machine"   # a blank in the name
    check(mount.mount()).umount()
    shutil.rmtree(store.index)
    check(mount.mount())
    mount.fsck()
    store.index = None                         # its index is out of date by now
    check(mount.mount())
    mount.fsck()


def test_a_pool_is_not_hidden_by_its_own_mount(factory, local, cache):
    store = new_store(factory, local)
    refused = weightfs("mount", store.directory, local, codes=(2,)).err
    assert str(store.devices[0]) in refused and "must not lie in one another" in refused


def test_a_killed_mount_moves_too(factory, local, cache):
    store = new_store(factory, local)
    mount = fill(factory.mount(store))
    with open(mount.path / "d/file", "rb") as stream:
        os.fsync(stream.fileno())
    mount.kill9()
    shutil.rmtree(cache)
    store.index = local / "index"
    check(mount.mount())
    mount.fsck()


def test_the_next_mount_replaces_a_killed_one(factory, local, cache):
    """The mount that is there names another index. It waits for the process, which still has the devices."""
    mount = fill(factory.mount(new_store(factory, local, index=local / "index")))
    with open(mount.path / "d/file", "rb") as stream:
        os.fsync(stream.fileno())
    for index in (None, local / "other", local / "index"):
        process.kill(mount.pid)
        mount.store.index = index
        check(mount.mount())
        assert json.loads(weightfs("info", "--json", mount.store.devices[0]).out)["index"] == os.fspath(
            index or next(cache.iterdir()))
    mount.fsck()


def test_a_store_that_was_never_mounted_moves(factory, local, cache):
    store = new_store(factory, local)
    shutil.rmtree(cache)
    mount = fill(factory.mount(store))
    check(mount).fsck()


def test_relative_names(factory, local, cache, monkeypatch):
    store = new_store(factory, local)
    monkeypatch.chdir(local)
    point = factory.directory("point")
    weightfs("mount", store.devices[0].name, point, "-o", "index=index")
    try:
        (point / "file").write_bytes(DATA)
        refused = weightfs("mount", store.devices[0].name, factory.directory("other"), codes=(1,))
        assert f"weightfs umount {point}" in refused.err
        assert json.loads(weightfs("info", "--json", point).out)["store"] == f"{store.devices[0]},index={local}/index"
    finally:
        weightfs("umount", point)
    assert "clean" in weightfs("verify", f"{store.devices[0].name},index=index").out


def test_one_mount_at_a_time_whatever_the_index(factory, local, cache, point):
    store = new_store(factory, local)
    mount = fill(factory.mount(store))
    for name in (store.devices[0], f"{store.devices[0]},index={local}/other"):
        refused = weightfs("mount", name, point, codes=(1,))
        assert f"weightfs umount {mount.path}" in refused.err and len(refused.err.splitlines()) == 1
        assert weightfs("verify", "--repair", name, codes=(8,)).err
    assert not (local / "other").exists()
    mount.umount()
    refused = weightfs("umount", store.devices[0], codes=(1,))
    assert "no weightfs is mounted there" in refused.err


@pytest.mark.parametrize("by_directory", [True, False])
def test_a_directory_and_its_device_exclude_each_other(factory, local, cache, point, by_directory):
    store = factory.store("64M")
    mount = factory.mount(store)
    mount.umount()
    pool = store.directory / "pool"
    first, second = (store.directory, pool) if by_directory else (pool, store.directory)
    weightfs("mount", first, mount.path)
    try:
        fill(mount)
        refused = weightfs("mount", second, point, codes=(1,))
        assert len(refused.err.splitlines()) == 1 and f"weightfs umount {mount.path}" in refused.err
        for name in (pool, store.directory):
            assert json.loads(weightfs("info", "--json", name).out)["mounted_on"] == os.fspath(mount.path)
    finally:
        weightfs("umount", mount.path)
    weightfs("mount", second, mount.path)
    try:
        check(mount)
    finally:
        weightfs("umount", mount.path)
    store.fsck()


def test_commands_take_devices(factory, local, cache):
    store = new_store(factory, local)
    device, mount = store.devices[0], fill(factory.mount(store))
    source = process.run(["findmnt", "-no", "SOURCE", mount.path]).out.strip()
    assert source == os.fspath(device) + ("" if os.geteuid() == 0 else f",index={next(cache.iterdir())}")
    for name in (device, source):
        info = json.loads(weightfs("info", "--json", name).out)
        assert info["mounted_on"] == os.fspath(mount.path) and info["index"] == os.fspath(next(cache.iterdir()))
    assert "no damage" in weightfs("verify", device).out
    assert f"this is the store; it is mounted on {mount.path}" in weightfs("umount", device, codes=(1,)).err
    assert "mounted on" in weightfs("doctor", device, codes=(0, 1)).out
    mount.umount()
    assert json.loads(weightfs("info", "--json", device).out)["clean_unmount"] is True
    assert "clean" in weightfs("verify", device).out
    assert "nothing is lost" in weightfs("recover", device, codes=(1,)).err
    # A look does not need the index, and makes none.
    shutil.rmtree(cache)
    assert json.loads(weightfs("info", "--json", device).out)["mounted_on"] is None
    assert not cache.exists()
    assert "rebuilt" in weightfs("recover", device).out
    check(mount.mount()).fsck()


def test_a_read_only_mount_needs_no_directory(factory, local, cache):
    store = new_store(factory, local)
    mount = fill(factory.mount(store))
    mount.umount()
    store.index = "/proc/nowhere"
    with pytest.raises(process.Failure, match="/proc/nowhere: cannot be made"):
        mount.mount()
    for _ in range(3):   # an unmount returns when the devices are free
        check(mount.mount("ro")).umount()
    store.index = None
    shutil.rmtree(cache)
    check(mount.mount("ro"))
    assert json.loads(weightfs("info", "--json", store.devices[0]).out)["mounted_on"] == os.fspath(mount.path)
    assert "no damage" in weightfs("verify", store.devices[0]).out
    mount.umount()
    assert "clean" in weightfs("verify", store.directory).out
    assert not cache.exists()


def test_a_repair_leaves_everything_on_the_devices(factory, local, cache):
    store = new_store(factory, local)
    mount = fill(factory.mount(store))
    mount.umount()
    for offset in SUPERBLOCK_OFFSETS:
        patch(store.devices[0], offset + 100, b"damage")
    damaged = weightfs("mount", store.directory, mount.path, codes=(1,))
    assert "'weightfs recover' rebuilds" in damaged.err and not is_mounted(mount.path)
    weightfs("verify", "--repair", store.directory, codes=(1,))
    shutil.rmtree(cache)
    check(mount.mount())
    mount.fsck()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=lambda number: number.name)
def test_an_interrupted_repair_leaves_everything_on_the_devices(factory, local, cache, number):
    store = factory.adopt(DeviceStore([local / "device"], None, "1G"))
    mount = fill(factory.mount(store))
    (mount.path / "d/large").write_bytes(data_of(6, 8 * MIB) * 60)
    mount.umount()
    running = subprocess.Popen([program(), "verify", "--repair", store.directory], stderr=subprocess.DEVNULL)
    while running.poll() is None and bytes_read(running.pid) < 32 * MIB:
        pass
    if running.poll() is None:
        running.send_signal(number)
    assert running.wait(60) in (0, 32, -number)
    shutil.rmtree(cache)
    check(mount.mount())
    mount.fsck()


def test_a_repair_without_a_log_writes_one(factory, local, cache):
    """The index may lack changes, because the log is damaged."""
    store = new_store(factory, local)
    mount = fill(factory.mount(store))
    with open(mount.path / "d/file", "rb") as stream:
        os.fsync(stream.fileno())
    mount.kill9()
    for offset in ROOT_OFFSETS:
        patch(store.devices[0], offset, bytes(4096))
    weightfs("mount", store.directory, mount.path, codes=(1,))
    assert weightfs("verify", "--repair", store.directory, codes=None).code in (1, 5)
    shutil.rmtree(cache)
    mount.mount()
    mount.fsck()


def test_a_copy_is_not_taken_for_the_mounted_store(factory, local, cache):
    store = new_store(factory, local)
    mount = fill(factory.mount(store))
    copy = local / "copy"
    mount.umount()
    shutil.copy(store.devices[0], copy)
    mount.mount()
    assert json.loads(weightfs("info", "--json", copy).out)["mounted_on"] is None
    assert "in use by process" in weightfs("verify", copy, codes=(8,)).err
    assert "clean" in weightfs("verify", f"{copy},index={local}/index").out
    mount.umount()
    shutil.copy(copy, store.devices[0])   # older than the index of the other one by now
    check(mount.mount()).fsck()


def test_what_is_no_store_is_refused(factory, local, cache, point):
    store = new_store(factory, local)
    text, empty = local / "text", local / "empty"
    text.write_bytes(b"text" * MIB)
    empty.write_bytes(bytes(MIB))
    shutil.copy(store.devices[0], local / "copy")
    for name, words in ((text, "not a weightfs store"), (empty, "weightfs format --device"),
                        (f"{store.devices[0]},{local}/copy", "one is a copy"),
                        (f"{store.devices[0]},{store.devices[0]}", "given twice"),
                        (f"{store.devices[0]},{local}/missing", "check the path"),
                        ("/dev/null,/dev/zero", "neither a block device nor a pool file")):
        refused = weightfs("mount", name, point, codes=(1, 2))
        assert words in refused.err and len(refused.err.splitlines()) == 1, refused


def test_a_device_is_found_and_a_missing_one_is_named(factory, local, cache, point):
    store = new_store(factory, local, 2)
    first, second = store.devices
    mount = fill(factory.mount(store))
    mount.umount()
    weightfs("mount", first, mount.path)
    check(mount)
    weightfs("umount", mount.path)
    os.rename(second, local / "elsewhere")
    refused = weightfs("mount", first, point, codes=(1,))
    assert f"device 1 (last {second}) is missing" in refused.err
    store.devices = [local / "elsewhere", first]
    check(mount.mount())
    mount.fsck()


def test_links_in_the_cache_are_not_followed(factory, local, cache, point):
    store = new_store(factory, local)
    shutil.rmtree(cache)
    target = factory.directory("target")
    os.symlink(target, cache)
    for words in (("mount", store.directory, point), ("mount", "-r", store.directory, point),
                  ("info", store.directory)):
        assert "symbolic link" in weightfs(*words, codes=(1,)).err
    assert not os.listdir(target)
    os.unlink(cache)
    cache.mkdir()
    index = cache / json.loads(weightfs("info", "--json", store.directory).out)["id"]
    os.symlink(target, index)
    assert "symbolic link" in weightfs("mount", store.directory, point, codes=(1,)).err
    assert not os.listdir(target)


def test_format_destroys_nothing(factory, local, cache):
    store = new_store(factory, local)
    before = store.devices[0].read_bytes()[:4 * MIB]
    assert "already holds a device of a weightfs store" in weightfs("format", "--device", store.devices[0],
                                                                    codes=(1,)).err
    assert "omit it" in weightfs("format", "--device", store.devices[0], "--size", "64M", codes=(1,)).err
    assert store.devices[0].read_bytes()[:4 * MIB] == before
    DeviceStore(store.devices, force=True)
    assert store.devices[0].read_bytes()[:4 * MIB] != before


@needs.loop_devices()
def test_block_devices_by_mount_and_fstab(factory, local, cache, point):
    """mount(8) with the helpers, in a namespace in which /sbin has them."""
    image, helpers, fstab = local / "image", factory.directory("helpers"), local / "fstab"
    with open(image, "wb") as stream:
        stream.truncate(64 * MIB)
    device = process.run(["losetup", "--find", "--show", image]).out.strip()
    try:
        weightfs("format", "--device", device)
        for name in ("mount.weightfs", "mount.fuse.weightfs", "umount.weightfs", "umount.fuse.weightfs"):
            (helpers / name).symlink_to(program())
        fstab.write_text(f"{device} {point} weightfs noatime,noauto 0 0\n")
        # The helpers are searched for in the directories that are compiled into mount(8).
        script = (f"set -e\n{helpers}/mount.weightfs {device} {point} -o rw\necho text > {point}/file\n"
                  f"test $(findmnt -no SOURCE {point}) = {device}\n{helpers}/umount.weightfs {point}\n"
                  f"{helpers}/mount.fuse.weightfs {device} {point} -o index={local}/index\n"
                  f"test $(cat {point}/file) = text\n{helpers}/umount.weightfs {point}\n")
        process.run(["sh", "-c", script], limit=120)
        refused = weightfs("format", local / "other", "--device", device, codes=(1,))
        assert "already holds a device of a weightfs store" in refused.err
    finally:
        process.run(["umount", "-l", point], codes=None)
        process.run(["losetup", "-d", device])


@needs.root
@needs.loop_devices()
def test_a_line_of_fstab_with_its_index_is_mounted_once(factory, local, cache, point, scratch):
    image, helpers, fstab = local / "image", factory.directory("helpers"), local / "fstab"
    with open(image, "wb") as stream:
        stream.truncate(64 * MIB)
    device = process.run(["losetup", "--find", "--show", image]).out.strip()
    sbin = os.path.realpath("/sbin")
    try:
        weightfs("format", "--device", device, "--index", local / "index")
        (helpers / "mount.weightfs").symlink_to(program().resolve())
        fstab.write_text(f"{device} {point} weightfs index={local}/index,nofail 0 0\n")
        with namespaces.own_mounts(own=scratch):
            try:
                namespaces.mount("overlay", sbin, "overlay", options=f"lowerdir={helpers}:{sbin}")
            except OSError as error:
                pytest.skip(f"needs overlayfs, which this machine does not allow: {error}")
            again = f"mount -T {fstab} -a\n"
            finished = process.run(["sh", "-ec", f"{again}echo text > {point}/file\n{again}findmnt -no SOURCE {point}\n"
                                                 f"cat {point}/file\n{program().resolve()} umount {point}\n"],
                                   limit=120)
        assert finished.out.split() == [f"{device},index={local}/index", "text"]
        assert "already the mount of" in finished.err
    finally:
        process.run(["umount", "-l", point], codes=None)
        process.run(["losetup", "-d", device])


@needs.loop_devices()
def test_no_command_reads_the_devices_of_other_stores(factory, local, cache):
    """One that hangs would block all of them."""
    image = local / "image"
    with open(image, "wb") as stream:
        stream.truncate(64 * MIB)
    device = process.run(["losetup", "--find", "--show", image]).out.strip()
    try:
        other = factory.mount(factory.adopt(DeviceStore([device])))
        mount = fill(factory.mount(new_store(factory, local)))
        reads = Path("/sys/block", Path(device).name, "stat")
        before = reads.read_text().split()[0]
        assert json.loads(weightfs("info", "--json", mount.store.devices[0]).out)["mounted_on"] == str(mount.path)
        assert "in use by" in weightfs("verify", "--repair", mount.store.devices[0], codes=(8,)).err
        mount.umount()
        assert "clean" in weightfs("verify", mount.store.devices[0]).out
        check(mount.mount()).umount()
        assert reads.read_text().split()[0] == before
        other.umount()
    finally:
        process.run(["losetup", "-d", device])


@needs.root
def test_a_holder_without_a_mount_is_named(factory, local, cache, point):
    """With another index, and in another mount namespace, only the lock of the device shows it."""
    store = new_store(factory, local, index=local / "index")
    mount = fill(factory.mount(store))
    for words in (("mount", store.devices[0], point), ("verify", store.devices[0]),
                  ("format", "--force", "--device", store.devices[0])):
        script = ["sh", "-c", 'umount -l "$0" && exec "$@"', mount.path, program(), *words]
        refused = process.run(["unshare", "-m", *script], codes=(1, 8)).err
        assert f"in use by process {mount.pid} (weightfs)" in refused and len(refused.splitlines()) == 1, refused
    check(mount)
    mount.umount()


def test_format_replaces_the_index_of_the_store_on_its_devices(factory, local, cache):
    store = new_store(factory, local)
    for _ in range(2):
        before = list(cache.iterdir())
        DeviceStore(store.devices, force=True)
        assert len(list(cache.iterdir())) == 1 and list(cache.iterdir()) != before
    index = local / "index"
    for _ in range(2):
        DeviceStore(store.devices, index, force=True)
        assert not list(cache.iterdir()) and {"store.json", "meta"} <= set(os.listdir(index))
    DeviceStore(store.devices, force=True)
    weightfs("format", local / "directory", "--device", store.devices[0], "--force")
    assert not list(cache.iterdir())


@needs.root
def test_a_mount_of_another_user_is_not_believed(factory, local, cache, point):
    """Any user can mount a filesystem with this type and source."""
    store = new_store(factory, local)
    mount = fill(factory.mount(store))
    mount.umount()
    false = factory.directory("false")
    fuse, lock = os.open("/dev/fuse", os.O_RDWR), os.open(false / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    namespaces.mount(f"{store.devices[0]},index={false}", point, "fuse.weightfs",
                     options=f"fd={fuse},rootmode=40000,user_id=12345,group_id=12345")
    try:
        assert json.loads(weightfs("info", "--json", store.devices[0]).out)["mounted_on"] is None
        assert "clean" in weightfs("verify", store.devices[0]).out
        assert "clean" in weightfs("verify", "--repair", store.devices[0]).out
        assert os.listdir(false) == ["lock"]
        check(mount.mount())
    finally:
        process.run(["umount", "-l", point])
        os.close(fuse)
        os.close(lock)
    mount.fsck()


@needs.root
@needs.program("fusermount3", "setpriv")
def test_a_user_without_privileges(open_fuse, local, factory, request):
    """Their index is in their own cache, and root finds it by the mount."""
    from test_users import NOBODY, run_as_nobody
    copy, home = local / "weightfs", local / "home"
    shutil.copy(program(), copy)
    copy.chmod(0o755)
    for path in (home, home / "mnt"):
        path.mkdir()
        os.chown(path, NOBODY, NOBODY)
    device, directory = home / "device", home / "mnt"

    def run(*words, **options):
        return run_as_nobody(["env", f"HOME={home}", *words], **options)

    run(copy, "format", "--device", device, "--size", "64M", "--sparse")
    request.config.watchdog.watch(directory, "weightfs", device)
    try:
        run(copy, "mount", device, directory)
        run("sh", "-c", f"echo text > {directory}/file")
        info = json.loads(weightfs("info", "--json", device).out)
        assert info["mounted_on"] == os.fspath(directory) and info["index"].startswith(f"{home}/.cache/weightfs/")
        assert stat.S_IMODE(os.stat(info["index"]).st_mode) == 0o700 and os.stat(info["index"]).st_uid == NOBODY
        weightfs("umount", directory)
        run(copy, "mount", device, directory)
        assert run("cat", directory / "file").out == "text\n"
        run(copy, "umount", directory)
        run(copy, "verify", device)
    finally:
        for pid in process.processes_with("weightfs", str(device)):
            process.kill(pid)
            process.wait_gone(pid)
        process.run(["umount", "-l", directory], codes=None)
        request.config.watchdog.forget(directory)
