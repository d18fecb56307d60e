# SPDX-License-Identifier: Apache-2.0
"""A catalog that is lost, damaged or older than the devices: it is noticed, and its replica on the devices gives it
back."""

import json
import os
import random
import shutil

import pytest

import store_files
from harness import needs, process
from harness.filesystems import wait_until, weightfs
from harness.process import Failure
from harness.tree import snapshot
from store_files import SUPERBLOCK_OFFSETS, SUPERBLOCK_SIZE, data_of

pytestmark = pytest.mark.usefixtures("weightfs_only")

ROOT_OFFSETS = (64 << 10, 576 << 10, 1088 << 10, 1600 << 10)


def fill(directory):
    """Files of several sizes, directories, links and attributes."""
    for number in range(40):
        folder = directory / f"d{number % 5}"
        folder.mkdir(exist_ok=True)
        (folder / f"f{number}").write_bytes(data_of(number, number * 5000))
        os.setxattr(folder / f"f{number}", "user.number", str(number).encode())
    os.link(directory / "d1/f1", directory / "hard")
    os.symlink("d1/f1", directory / "soft")
    (directory / "large").write_bytes(data_of(99, 5 << 20))


@pytest.fixture
def filled(factory):
    """An unmounted store, and the content that its files had."""
    mount = factory.mount(factory.store("64M"))
    fill(mount.path)
    content = snapshot(mount.path, times=True)
    mount.umount()
    return mount, content


def lose_catalog(mount):
    shutil.rmtree(mount.store.directory / "meta")


def check_content(mount, content, codes=(0,)):
    mount.store.fsck(codes=codes)
    mount.mount()
    assert snapshot(mount.path, times=True) == content
    (mount.path / "new").write_bytes(b"x" * 10000)
    mount.remount()
    assert (mount.path / "new").read_bytes() == b"x" * 10000
    (mount.path / "new").unlink()
    mount.fsck()


def test_a_lost_catalog_is_rebuilt(filled):
    mount, content = filled
    lose_catalog(mount)
    with pytest.raises(Failure, match="recover|--repair"):
        mount.mount()
    output = weightfs("recover", mount.store.directory).out
    assert "restored from its replica" in output and "weightfs verify" in output
    check_content(mount, content)


def test_a_lost_directory_is_rebuilt_from_the_device(filled, tmp_path):
    mount, content = filled
    pool = tmp_path / "pool"
    shutil.copyfile(mount.store.directory / "pool", pool)
    shutil.rmtree(mount.store.directory)
    report = json.loads(weightfs("recover", mount.store.directory, "--device", pool, "--json").out)
    assert report["rebuilt_catalog"] and report["wrote_description"] and report["rebuilt_superblocks"] == []
    check_content(mount, content)


def test_lost_superblocks_are_rebuilt(filled):
    mount, content = filled
    for offset in SUPERBLOCK_OFFSETS:
        store_files.patch(mount.store.directory / "pool", offset, bytes(SUPERBLOCK_SIZE))
    with pytest.raises(Failure):
        mount.mount()
    report = json.loads(weightfs("recover", mount.store.directory, "--json").out)
    assert not report["rebuilt_catalog"] and len(report["rebuilt_superblocks"]) == 1
    check_content(mount, content)


def test_everything_but_the_replica_is_lost(filled):
    mount, content = filled
    pool = mount.store.directory / "pool"
    for offset in SUPERBLOCK_OFFSETS:
        store_files.patch(pool, offset, os.urandom(SUPERBLOCK_SIZE))
    lose_catalog(mount)
    (mount.store.directory / "store.json").write_text("{}")
    weightfs("recover", mount.store.directory)
    check_content(mount, content)


def test_several_devices_in_any_order(factory, tmp_path):
    devices = [tmp_path / name for name in ("a", "b", "c")]
    for device in devices:
        with open(device, "wb") as stream:
            stream.truncate(32 << 20)
    mount = factory.mount(factory.store(devices=devices))
    fill(mount.path)
    content = snapshot(mount.path, times=True)
    mount.umount()
    lose_catalog(mount)
    (mount.store.directory / "store.json").unlink()
    with pytest.raises(Failure, match="device"):
        weightfs("recover", mount.store.directory, "--device", devices[1])
    words = [word for device in reversed(devices) for word in ("--device", device)]
    weightfs("recover", mount.store.directory, *words)
    check_content(mount, content)


def test_a_catalog_that_works_is_left_alone(filled):
    mount, content = filled
    with pytest.raises(Failure, match="lacks nothing"):
        weightfs("recover", mount.store.directory)
    mount.mount()
    with pytest.raises(Failure, match="mount"):
        weightfs("recover", mount.store.directory)
    assert snapshot(mount.path, times=True) == content


def test_a_store_without_a_replica_is_told_so(filled):
    mount, _ = filled
    for offset in ROOT_OFFSETS:
        store_files.patch(mount.store.directory / "pool", offset, bytes(4096))
    lose_catalog(mount)
    with pytest.raises(Failure, match="no replica of the catalog"):
        weightfs("recover", mount.store.directory)


def test_the_devices_of_another_store_are_refused(filled, factory):
    mount, content = filled
    other = factory.mount(factory.store("64M"))
    (other.path / "other").write_bytes(b"other")
    other.umount()
    pool, kept = mount.store.directory / "pool", mount.store.directory / "kept"
    os.rename(pool, kept)
    shutil.copyfile(other.store.directory / "pool", pool)
    for words in (["verify", "--catalog", mount.store.directory, "--repair"], ["recover", mount.store.directory]):
        with pytest.raises(Failure, match="another store"):
            weightfs(*words)
    os.rename(kept, pool)
    check_content(mount, content)


def test_a_link_in_the_directory_is_refused(filled, tmp_path):
    mount, _ = filled
    pool = mount.store.directory / "pool"
    os.rename(pool, tmp_path / "elsewhere")
    os.symlink(tmp_path / "elsewhere", pool)
    lose_catalog(mount)
    with pytest.raises(Failure, match="symbolic link|link"):
        weightfs("recover", mount.store.directory)


def test_a_replica_that_an_older_program_did_not_keep_is_not_used(filled):
    mount, _ = filled
    pool = mount.store.directory / "pool"
    for offset in SUPERBLOCK_OFFSETS:
        block = bytearray(store_files.read_at(pool, offset, SUPERBLOCK_SIZE))
        block[16:24] = bytes(8)
        block[-4:] = store_files.crc32c(bytes(block[:-4])).to_bytes(4, "little")
        store_files.patch(pool, offset, bytes(block))
    lose_catalog(mount)
    with pytest.raises(Failure, match="older weightfs has written"):
        weightfs("recover", mount.store.directory)


@pytest.mark.limit(300)
def test_the_replica_of_a_running_mount_follows(factory, tmp_path):
    """The next mount would complete it, so a copy of the device is recovered while the mount runs."""
    mount = factory.mount(factory.store("32M"), "commit=3600")
    data = data_of(3, 70_000)
    with open(mount.path / "file", "wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())

    def has_followed():
        copy, point = factory.directory("copy") / "store", factory.directory("point")
        shutil.copyfile(mount.store.directory / "pool", tmp_path / "pool")
        if weightfs("recover", copy, "--device", tmp_path / "pool", codes=(0, 1)).code != 0:
            return False
        weightfs("mount", copy, point, "-o", "ro")
        try:
            return (point / "file").exists() and (point / "file").read_bytes() == data
        finally:
            weightfs("umount", point)

    assert wait_until(has_followed, 200)


@needs.root
def test_info_shows_that_the_replica_is_behind(factory):
    """The device has holes on a full filesystem, so the replica cannot be written until there is space."""
    small = factory.directory("small")
    process.run(["mount", "-t", "tmpfs", "-o", "size=80m,huge=never", "none", small])
    try:
        with open(small / "pool", "wb") as stream:
            stream.truncate(64 << 20)
        store = factory.store(devices=[small / "pool"], sparse=False)
        process.run(["fallocate", "--dig-holes", small / "pool"])
        mount = factory.mount(store)

        def shown():
            return "not current" in weightfs("info", mount.path).out

        assert wait_until(lambda: not shown())   # the mount writes it in the background
        process.run(["dd", "if=/dev/zero", f"of={small}/filler", "bs=4k", "status=none"], codes=(1,))
        assert not shown()
        for number in range(1000):
            (mount.path / str(number)).mkdir()
        synced = os.open(mount.path, os.O_RDONLY)
        os.fsync(synced)   # the replica has durable changes only
        os.close(synced)
        assert wait_until(shown)
        (small / "filler").unlink()
        assert wait_until(lambda: not shown())
        mount.fsck()
    finally:
        process.run(["umount", "-l", small])


def test_an_older_catalog_is_noticed_and_catches_up(filled, tmp_path):
    mount, content = filled
    directory = mount.store.directory
    shutil.copytree(directory / "meta", tmp_path / "older")
    mount.mount()
    (mount.path / "later").write_bytes(data_of(7, 70000))
    (mount.path / "large").unlink()
    newest = snapshot(mount.path, times=True)
    mount.umount()
    shutil.rmtree(directory / "meta")
    shutil.copytree(tmp_path / "older", directory / "meta")

    with pytest.raises(Failure, match="lacks the last .* changes"):
        mount.mount()
    assert "lacks the last" in mount.store.fsck(codes=(4,)).out
    assert json.loads(weightfs("info", directory, "--json").out)["catalog_is_behind"]
    mount.mount("ro")
    assert set(snapshot(mount.path, times=True)) == set(content)
    mount.umount()
    assert "restored from its replica" in weightfs("verify", "--catalog", directory, "--repair", codes=(1,)).out
    mount.options = ""
    check_content(mount, newest)


def test_a_shortened_manifest_is_noticed(filled):
    mount, content = filled
    directory = mount.store.directory
    for round_number in range(4):
        mount.mount()
        (mount.path / f"round{round_number}").write_bytes(data_of(round_number, 3000))
        content = snapshot(mount.path, times=True)
        mount.umount()
    manifest = max((directory / "meta").glob("MANIFEST-*"))
    with open(manifest, "r+b") as stream:
        stream.truncate(os.path.getsize(manifest) * 2 // 3)
    with pytest.raises(Failure):
        mount.mount()
    weightfs("verify", "--catalog", directory, "--repair", codes=(1,))
    check_content(mount, content)


@pytest.mark.parametrize("seed", range(8))
def test_flipped_bits_lose_nothing(filled, request, tmp_path, seed):
    """One bit in a file of the catalog, in store.json or in a superblock: after fsck --repair, or recover, all is there."""
    mount, content = filled
    directory = mount.store.directory
    shutil.copytree(directory, tmp_path / "good")
    random_source = random.Random(seed)
    files = [path.relative_to(directory) for path in (directory / "meta").iterdir()
             if path.stat().st_size > 0 and path.name != "reserve"]
    files += ["store.json", "pool"]
    for _ in range(25 if request.config.getoption("--full") else 3):
        name = random_source.choice(files)
        size = 4096 if name == "pool" else os.path.getsize(directory / name)
        offset = random_source.randrange(size)
        bit = random_source.randrange(8)
        store_files.flip(directory / name, offset, 1 << bit)
        note = f"bit {bit} of byte {offset} of {name}"
        code = weightfs("verify", "--catalog", directory, "--repair", codes=(0, 1, 4, 8)).code
        if code not in (0, 1):
            weightfs("recover", directory)
        mount.mount()
        assert snapshot(mount.path, times=True) == content, note
        mount.umount()
        mount.store.fsck()
        shutil.rmtree(directory)
        shutil.copytree(tmp_path / "good", directory)
