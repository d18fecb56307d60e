# SPDX-License-Identifier: Apache-2.0
"""scrub and verify read all data of a mount and name the blocks that are damaged."""

import contextlib
import json
import os
import signal
import subprocess

import pytest

import store_files
from harness.filesystems import program, weightfs
from harness.process import Failure
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


def scrub(*words, codes=(0,)):
    return json.loads(weightfs("scrub", *words, "--json", codes=codes).out)


def test_an_intact_mount(tree):
    report = scrub(tree.path, "--rate", "0")
    assert report["files"] == 7 and report["damaged"] == [] and report["failures"] == []
    assert 18 * MIB < report["bytes"] < 20 * MIB, "holes and second names are not read"
    assert scrub(tree.store.directory)["files"] == 7, "the store stands for its mount"
    assert "no damage" in weightfs("scrub", tree.path / "d1").out


def test_damaged_blocks_are_named(tree):
    path = tree.path / "d3/inner/file"
    damage(tree, path, 2 * MIB + 5)
    report = scrub(tree.path, codes=(4,))
    assert report["damaged"] == [{"path": str(path), "blocks": 1, "offsets": [2 * MIB]}]
    assert report["files"] == 7
    with pytest.raises(Failure, match="1 damaged blocks, the first at byte 2097152"):
        weightfs("verify", path)
    weightfs("verify", tree.path / "d2/inner/file", tree.path / "d4/inner/file")


def test_an_interrupted_scrub_continues(tree, tmp_path):
    state = tmp_path / "state"
    running = subprocess.Popen([program(), "scrub", tree.path, "--rate", "4M", "--state", state, "--json"],
                               stdout=subprocess.PIPE, text=True)
    while not any("/d3/" in path for path in open_files(running.pid)):
        assert running.poll() is None
    running.send_signal(signal.SIGINT)
    first = json.loads(running.communicate(timeout=60)[0])
    assert running.returncode == 32 and first["interrupted"] and first["files"] >= 1
    assert json.loads(state.read_text())["after"].startswith("d2/")
    second = scrub(tree.path, "--rate", "0", "--state", state)
    assert first["files"] + second["files"] >= 7 and second["files"] < 7
    assert not state.exists()


def open_files(pid):
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            yield os.readlink(f"/proc/{pid}/fd/{name}")


def test_refusals(tree, tmp_path):
    with pytest.raises(Failure, match="not in a mount of weightfs"):
        weightfs("scrub", tmp_path)
    with pytest.raises(Failure, match="not a size"):
        weightfs("scrub", tree.path, "--rate", "fast")
    (tmp_path / "state").write_text("{}")
    with pytest.raises(Failure, match="not the state of a scrub"):
        weightfs("scrub", tree.path, "--state", tmp_path / "state")
    tree.umount()
    with pytest.raises(Failure, match="fsck --data"):
        weightfs("scrub", tree.store.directory)
