# SPDX-License-Identifier: Apache-2.0
"""verify reads everything of stores, mounts, directories and files, and names the blocks that are damaged."""

import errno
import fcntl
import json
import os
import signal
import struct
import subprocess

import pytest

import store_files
from harness import process
from harness.filesystems import program, weightfs
from harness.process import Failure
from harness.syscalls import errno_of
from store_files import data_of, extents_of

pytestmark = pytest.mark.usefixtures("weightfs_only")

MIB = 1 << 20


@pytest.fixture
def tree(factory):
    mount = factory.mount(factory.store("256M"))
    for number in range(6):
        folder = mount.path / f"d{number}" / "inner"
        folder.mkdir(parents=True)
        (folder / "file").write_bytes(data_of(number, 3 * MIB + number))
    with open(mount.path / "sparse", "wb") as stream:
        stream.seek(1 << 40)
        stream.write(b"end")
    os.link(mount.path / "d0/inner/file", mount.path / "zz-hard")
    os.symlink("d0", mount.path / "link")
    return mount


def damage(mount, path, offset):
    extents = extents_of(path)
    mount.umount()
    place = next(e["physical"] + offset - e["logical"] for e in extents
                 if e["logical"] <= offset < e["logical"] + e["length"])
    store_files.flip(mount.store.directory / "pool", place)
    mount.mount()


def verify(*words, codes=(0,)):
    return json.loads(weightfs("verify", *words, "--json", codes=codes).out)


def test_an_intact_mount(tree):
    report = verify(tree.path, "--rate", "0")
    assert report["files"] == 7 and report["damaged"] == [] and report["failures"] == []
    assert 18 * MIB < report["bytes"] < 20 * MIB, "holes and second names are not read"
    assert verify(tree.store.directory)["files"] == 7, "the store stands for its mount"
    assert "no damage" in weightfs("verify", tree.path / "d1").out
    assert verify(tree.path / "d1", tree.path / "d2/inner", tree.path / "sparse")["files"] == 3


@pytest.mark.parametrize("published", [False, True])
def test_what_is_in_memory_is_read_from_the_devices(factory, published):
    mount = factory.mount(factory.store("256M"), "cache_memory=64M")
    path = mount.path / "models/weights"
    path.parent.mkdir()
    path.write_bytes(data_of(1, 9 * MIB))
    if published:
        weightfs("publish", path.parent)
    for _ in range(2):
        assert path.read_bytes() == data_of(1, 9 * MIB)
    assert verify(path.parent)["damaged"] == []
    place = next(e["physical"] + 5 * MIB - e["logical"] for e in extents_of(path)
                 if e["logical"] <= 5 * MIB < e["logical"] + e["length"])
    store_files.flip(mount.store.directory / "pool", place)
    for what in (path.parent, mount.store.directory):
        damaged, = verify(what, codes=(4,))["damaged"]
        assert damaged["path"] == str(path) and damaged["offsets"] == [5 * MIB]


def test_only_readers_check_a_range(tree):
    path = tree.path / "d0/inner/file"
    check = (1 << 30) | (24 << 16) | (ord("W") << 8) | 18   # WEIGHTFS_IOC_CHECK_RANGE
    for flags, expected in ((os.O_RDONLY, None), (os.O_RDWR, None), (os.O_WRONLY, errno.EBADF), (3, errno.EBADF)):
        file = os.open(path, flags)
        assert errno_of(fcntl.ioctl, file, check, struct.pack("=IIQQ", 1, 0, 0, MIB)) == (expected or 0)
        os.close(file)


def test_a_file_that_is_shortened_meanwhile_ends_there(factory):
    mount = factory.mount(factory.store("256M"))
    path = mount.path / "file"
    path.write_bytes(data_of(1, 9 * MIB))
    os.sync()
    running = subprocess.Popen([program(), "verify", path, "--rate", "1M", "--json"], stdout=subprocess.PIPE, text=True)
    while str(path) not in process.open_files(running.pid):
        assert running.poll() is None
    os.truncate(path, MIB)
    assert json.loads(running.communicate(timeout=60)[0])["bytes"] <= 4 * MIB


def test_an_interrupted_check_continues_at_names_that_are_not_utf8(factory, tmp_path):
    mount, state = factory.mount(factory.store("256M")), tmp_path / "state"
    folder = mount.path / os.fsdecode(b"d\xe9")
    folder.mkdir()
    for name, size in (("f0", MIB), ("f1", 24 * MIB), ("f2", MIB)):
        (folder / name).write_bytes(data_of(1, size))
    running = subprocess.Popen([program(), "verify", mount.path, "--rate", "4M", "--state", state, "--json"],
                               stdout=subprocess.PIPE, text=True)
    while not any(path.endswith("/f1") for path in process.open_files(running.pid)):
        assert running.poll() is None
    running.send_signal(signal.SIGTERM)
    running.communicate(timeout=60)
    assert running.returncode == 32
    assert verify(mount.path, "--rate", "0", "--state", state)["files"] == 2


def test_damaged_blocks_are_named(tree):
    path = tree.path / "d3/inner/file"
    damage(tree, path, 2 * MIB + 5)
    report = verify(tree.path, codes=(4,))
    assert report["damaged"] == [{"path": str(path), "blocks": 1, "offsets": [2 * MIB]}]
    assert report["files"] == 7
    with pytest.raises(Failure, match="1 damaged blocks, the first at byte 2097152"):
        weightfs("verify", path)
    weightfs("verify", tree.path / "d2/inner/file", tree.path / "d4/inner/file")


def test_a_store_and_its_mount_name_the_same_damage(tree, factory):
    """Of several targets each has its report, and the exit code is that of all together."""
    path = tree.path / "d3/inner/file"
    damage(tree, path, 2 * MIB + 5)
    sound = factory.store("64M")
    out = weightfs("verify", sound.directory, tree.path / "d1", tree.path / "d3", codes=(4,)).out
    assert "clean\n" in out and "2 files" in out and f"{path}: 1 damaged blocks" in out
    tree.umount()
    report = verify(tree.store.directory, codes=(4,))
    finding, = report["findings"]
    assert finding["kind"] == "data mismatch" and "d3/inner/file" in finding["text"]
    assert 18 * MIB < report["verified_bytes"] < 20 * MIB
    assert verify("--catalog", tree.store.directory)["verified_bytes"] == 0
    assert verify("--repair", tree.store.directory, codes=(4,))["repaired"] == 0


def test_a_damaged_table_of_a_mounted_catalog_is_found(tree):
    for number in range(200):
        (tree.path / f"d0/g{number}").write_bytes(b"x" * 5000)
    tree.umount()
    tree.mount()
    sound, = verify(tree.path)["catalogs"]
    assert sound["path"] == str(tree.path) and sound["bytes"] > 0 and sound["damage"] == sound["not_checked"] == ""
    assert verify(tree.path / "d0")["catalogs"] == [], "a part of a mount has no catalog of its own"
    assert ", catalog " in weightfs("verify", tree.path).out
    table = max((tree.store.directory / "meta").glob("*.sst"), key=lambda path: path.stat().st_size)
    store_files.flip(table, 300)
    for target in (tree.path, tree.store.directory):
        report = verify(target, codes=(4,))
        assert table.name in report["catalogs"][0]["damage"] and report["damaged"] == [], "the data is sound"
    out = weightfs("verify", tree.path, codes=(4,)).out
    assert "the index of the catalog is damaged: " in out and "mount it again" in out and "no file is damaged" in out


def test_old_names_answer_and_say_the_new_ones(tree):
    def warning(*words):
        return weightfs(*words).err.rpartition("; ")[0]

    assert warning("scrub", tree.path) == "weightfs: 'scrub' is now 'weightfs verify'"
    assert weightfs("scrub", tree.path, "--json").err == ""
    tree.umount()
    assert warning("fsck", tree.store.directory) == "weightfs: 'fsck' is now 'weightfs verify --catalog'"
    assert "verified" in weightfs("fsck", tree.store.directory, "--data").out
    listed = weightfs("--help").out.partition("Subcommands:")[2]
    assert not set(listed.split()) & {"fsck", "scrub", "top", "unpublish"}


def test_an_interrupted_check_continues(tree, tmp_path):
    state = tmp_path / "state"
    (tree.path / "d3/inner/file").write_bytes(data_of(3, 24 * MIB))   # open for 6 seconds
    running = subprocess.Popen([program(), "verify", tree.path, "--rate", "4M", "--state", state, "--json"],
                               stdout=subprocess.PIPE, text=True)
    while not any("/d3/" in path for path in process.open_files(running.pid)):
        assert running.poll() is None
    running.send_signal(signal.SIGINT)
    first = json.loads(running.communicate(timeout=60)[0])
    assert running.returncode == 32 and first["interrupted"] and first["files"] >= 1
    assert json.loads(state.read_text())["after"].startswith("d2/")
    second = verify(tree.path, "--rate", "0", "--state", state)
    assert first["files"] + second["files"] >= 7 and second["files"] < 7
    assert not state.exists()


def test_refusals(tree, tmp_path):
    for words, message, code in (((tmp_path,), "neither a store nor in a mount of weightfs", 8),
                                 ((tree.path, "--rate", "fast"), "not a size", 16),
                                 ((tree.path, "--repair"), "name the store, and unmount it first", 8),
                                 ((tree.store.directory, "--repair"), "unmount it first", 8),
                                 ((tree.store.directory, "--catalog"), "unmount it first", 8),
                                 ((tree.path / "sparse", "--state", tmp_path / "state"), "one mount or directory", 16)):
        assert message in weightfs("verify", *words, codes=(code,)).err
    with pytest.raises(Failure, match="File name too long"):
        weightfs("verify", tree.path, "--state", tmp_path / ("x" * 300))
    (tmp_path / "state").write_text("{}")
    with pytest.raises(Failure, match="not the state of a check"):
        weightfs("verify", tree.path, "--state", tmp_path / "state")
