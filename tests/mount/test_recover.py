# SPDX-License-Identifier: Apache-2.0
"""An index of the catalog that is lost, damaged, older than the devices or another store's: the next mount rebuilds it
from the log on the devices. recover rebuilds store.json and superblocks."""

import collections
import json
import os
import random
import shutil
import struct

import pytest

import store_files
from harness.filesystems import wait_until, weightfs
from harness.process import Failure
from harness.tree import snapshot
from store_files import ROOT_OFFSETS, SUPERBLOCK_OFFSETS, SUPERBLOCK_SIZE, data_of

pytestmark = pytest.mark.usefixtures("weightfs_only")

FRAME_MAGIC = b"WFSFRAM2"


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


def log_frames_of(pool):
    """The offsets of the frames of the log, which has more than a checkpoint."""
    frames = collections.defaultdict(list)
    with open(pool, "rb") as stream:
        for offset in range(2 << 20, os.path.getsize(pool), 4096):
            stream.seek(offset)
            block = stream.read(4096)
            if block.startswith(FRAME_MAGIC):
                frames[block[24:32]].append(offset)
    return max(frames.values(), key=len)


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


def test_a_lost_catalog_is_rebuilt_by_the_next_mount(filled):
    mount, content = filled
    lose_catalog(mount)
    told = "rebuilding the index"
    assert told in weightfs("mount", mount.store.directory, mount.path).err
    assert told in (mount.store.directory / "weightfs.log").read_text(), "what is said before the log begins"
    assert snapshot(mount.path, times=True) == content
    weightfs("umount", mount.path)
    check_content(mount, content)


def test_a_lost_catalog_is_rebuilt_by_recover(filled):
    mount, content = filled
    lose_catalog(mount)
    assert "the index of the catalog is rebuilt" in weightfs("recover", mount.store.directory).out
    check_content(mount, content)


def test_a_store_without_its_catalog_is_read_without_a_change(filled):
    mount, content = filled
    lose_catalog(mount)
    before = sorted(path.name for path in mount.store.directory.iterdir())
    mount.mount("ro")
    assert snapshot(mount.path, times=True) == content
    mount.umount()
    assert sorted(path.name for path in mount.store.directory.iterdir() if path.name != "weightfs.log") == \
        [name for name in before if name != "weightfs.log"]
    mount.options = ""
    check_content(mount, content)


def test_what_an_interrupted_rebuild_has_left_is_replaced(filled):
    mount, content = filled
    os.rename(mount.store.directory / "meta", mount.store.directory / "meta.recovering")
    check_content(mount, content)
    assert not (mount.store.directory / "meta.recovering").exists()


def test_the_index_of_another_store_is_replaced_and_kept(filled, factory):
    mount, content = filled
    other = factory.mount(factory.store("64M"))
    (other.path / "other").write_bytes(b"other")
    other.umount()
    lose_catalog(mount)
    shutil.copytree(other.store.directory / "meta", mount.store.directory / "meta")
    check_content(mount, content)
    kept = list(mount.store.directory.glob("meta.damaged-*"))
    assert len(kept) == 1 and (kept[0] / "CURRENT").exists()


def test_a_damaged_log_without_an_index_is_restored_as_far_as_possible(filled):
    """It is a loss, so it is never taken for the whole store."""
    mount, _ = filled
    mount.mount()
    for number in range(20):
        with open(mount.path / f"later{number}", "wb") as stream:
            os.fsync(stream.fileno())
    content = snapshot(mount.path)
    mount.umount()
    lose_catalog(mount)
    pool = mount.store.directory / "pool"
    frames = log_frames_of(pool)
    store_files.patch(pool, frames[len(frames) // 2], bytes(4096))
    with pytest.raises(Failure, match="--repair"):
        mount.mount()
    looked = weightfs("doctor", mount.store.directory, codes=None).out
    line = looked.partition("\n")[0]
    assert ": ok" not in line and "damaged" in line and "--repair" in looked, "what refuses the mount"
    assert "damaged" in weightfs("info", mount.store.directory, codes=None).out
    mount.mount("ro")
    mount.umount()
    mount.options = ""
    report = weightfs("verify", "--catalog", mount.store.directory, "--repair", codes=None)
    assert report.code in (1, 5) and "damaged" in report.out
    mount.mount()
    assert 0 < len(set(snapshot(mount.path)) & set(content)) < len(content)
    (mount.path / "new").write_bytes(b"new")
    mount.remount()
    assert (mount.path / "new").read_bytes() == b"new"


def test_a_damaged_log_behind_an_older_index_rebuilds_no_index(filled, tmp_path):
    mount, content = filled
    directory = mount.store.directory
    shutil.copytree(directory / "meta", tmp_path / "older")
    mount.mount()
    for number in range(20):
        with open(mount.path / f"later{number}", "wb") as stream:
            os.fsync(stream.fileno())
    mount.umount()
    shutil.rmtree(directory / "meta")
    shutil.copytree(tmp_path / "older", directory / "meta")
    pool = directory / "pool"
    frames = sorted(log_frames_of(pool), key=lambda at: struct.unpack("<Q", store_files.read_at(pool, at + 32, 8)))
    store_files.patch(pool, frames[-5], bytes(4096))
    report = json.loads(weightfs("recover", directory, "--json", codes=(1,)).out)
    assert report["lost"] and "damaged" in report["restored"] and not report["rebuilt_catalog"]
    mount.mount()
    assert set(content) <= set(snapshot(mount.path))


def test_a_damaged_log_of_a_complete_index_is_written_anew(filled):
    mount, content = filled
    pool = mount.store.directory / "pool"
    for offset in log_frames_of(pool):
        store_files.patch(pool, offset, bytes(4096))
    check_content(mount, content)
    lose_catalog(mount)
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
    with pytest.raises(Failure, match="nothing is lost"):
        weightfs("recover", mount.store.directory)
    mount.mount()
    with pytest.raises(Failure, match="mount"):
        weightfs("recover", mount.store.directory)
    assert snapshot(mount.path, times=True) == content


def lose_roots(mount):
    for offset in ROOT_OFFSETS:
        store_files.patch(mount.store.directory / "pool", offset, bytes(4096))


def test_a_complete_index_gets_a_new_log(filled):
    mount, content = filled
    lose_roots(mount)
    check_content(mount, content)
    lose_catalog(mount)
    check_content(mount, content)


def test_an_index_without_a_log_that_may_lack_changes_is_told_so(filled):
    mount, content = filled
    mount.mount()
    mount.kill9()
    lose_roots(mount)
    with pytest.raises(Failure, match="the log of the catalog on the devices is damaged"):
        mount.mount()
    mount.mount("ro")
    assert snapshot(mount.path, times=True) == content
    mount.umount()
    mount.options = ""
    os.rename(mount.store.directory / "meta", mount.store.directory / "kept")
    with pytest.raises(Failure, match="no log of a catalog"):
        weightfs("recover", mount.store.directory)
    os.rename(mount.store.directory / "kept", mount.store.directory / "meta")
    assert weightfs("verify", "--catalog", mount.store.directory, "--repair", codes=None).code in (1, 5)
    check_content(mount, content)


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


def test_an_older_catalog_catches_up(filled, tmp_path):
    mount, _ = filled
    directory = mount.store.directory
    shutil.copytree(directory / "meta", tmp_path / "older")
    mount.mount()
    (mount.path / "later").write_bytes(data_of(7, 70000))
    (mount.path / "large").unlink()
    newest = snapshot(mount.path, times=True)
    mount.umount()
    shutil.rmtree(directory / "meta")
    shutil.copytree(tmp_path / "older", directory / "meta")
    mount.store.fsck()
    mount.mount("ro")
    assert snapshot(mount.path, times=True) == newest
    mount.umount()
    mount.options = ""
    check_content(mount, newest)


def test_an_older_pool_has_what_it_had(filled, tmp_path):
    """The devices are the store: its index follows a copy that was put back, and the newer one is kept."""
    mount, content = filled
    directory = mount.store.directory
    shutil.copyfile(directory / "pool", tmp_path / "older")
    mount.mount()
    (mount.path / "later").write_bytes(data_of(7, 70000))
    mount.umount()
    shutil.copyfile(tmp_path / "older", directory / "pool")
    check_content(mount, content)
    assert len(list(directory.glob("meta.damaged-*"))) == 1


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
    check_content(mount, content)


@pytest.mark.parametrize("seed", range(8))
def test_flipped_bits_lose_nothing(filled, request, tmp_path, seed):
    """One bit in a file of the index: the next mount has everything. In store.json or a superblock: after a repair."""
    mount, content = filled
    directory = mount.store.directory
    shutil.copytree(directory, tmp_path / "good")
    random_source = random.Random(seed)
    files = [path.relative_to(directory) for path in (directory / "meta").iterdir()
             if path.stat().st_size > 0]
    files += ["store.json", "pool"]
    for _ in range(25 if request.config.getoption("--full") else 3):
        name = random_source.choice(files)
        size = 4096 if name == "pool" else os.path.getsize(directory / name)
        offset = random_source.randrange(size)
        bit = random_source.randrange(8)
        store_files.flip(directory / name, offset, 1 << bit)
        note = f"bit {bit} of byte {offset} of {name}"
        if not str(name).startswith("meta/"):
            weightfs("verify", "--catalog", directory, "--repair", codes=(0, 1))
        mount.mount()
        assert snapshot(mount.path, times=True) == content, note
        mount.umount()
        mount.store.fsck()
        shutil.rmtree(directory)
        shutil.copytree(tmp_path / "good", directory)
