# SPDX-License-Identifier: Apache-2.0
"""The mount option scrub=: the daemon reads everything by itself, and info shows what it found."""

import json
import os
import time

import pytest

import store_files
from harness.filesystems import wait_until, weightfs
from harness.process import Failure
from store_files import data_of, extents_of

pytestmark = pytest.mark.usefixtures("weightfs_only")

MIB = 1 << 20
ALWAYS = "scrub=0.000001"                      # a tenth of a second: one scrub follows another


def scrubs(path):
    return json.loads(weightfs("info", path, "--json").out)["scrub"]


def wait_for_scrub(path, begun_after=""):
    """Returns the report of a complete scrub that began after that time."""
    report = None

    def is_complete():
        nonlocal report
        report = scrubs(path)
        return report["last_started"] is not None and report["last_started"] > begun_after

    assert wait_until(is_complete), report
    return report


def now():
    """The time as in reports, in full seconds."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


@pytest.fixture
def mount(factory):
    mount = factory.mount(factory.store("128M"))
    (mount.path / "folder").mkdir()
    for number in range(4):
        (mount.path / f"folder/f{number}").write_bytes(data_of(number, 3 * MIB + number))
    return mount


def remount(mount, options):
    mount.umount()
    mount.mount(options=options)


def damage(mount, path, offset, options):
    extents = extents_of(path)
    mount.umount()
    place = next(e["physical"] + offset - e["logical"] for e in extents
                 if e["logical"] <= offset < e["logical"] + e["length"])
    store_files.flip(mount.store.directory / "pool", place)
    mount.mount(options=options)


def test_without_the_option_nothing_is_read(mount):
    report = scrubs(mount.path)
    assert report["period_seconds"] is None and report["last_completed"] is None and report["running"] is None
    assert "\nscrub " not in weightfs("info", mount.path).out


def test_an_intact_store(mount):
    remount(mount, ALWAYS)
    report = wait_for_scrub(mount.path)
    assert report["last"] == {"damaged_blocks": 0, "damaged_files": 0, "catalog_damaged": False,
                              "log_damaged": False, "files": []}
    assert " days; the last one ended 2" in weightfs("info", mount.path).out
    mount.umount()
    assert scrubs(mount.store.directory)["last_completed"] >= report["last_completed"], "kept without a mount"


def test_a_damaged_block_is_found(mount):
    path = mount.path / "folder/f2"
    damage(mount, path, 2 * MIB + 5, ALWAYS)
    report = wait_for_scrub(mount.path)
    assert report["last"]["damaged_blocks"] == 1
    found = report["last"]["files"][0]
    assert found == {"path": "folder/f2", "inode": os.stat(path).st_ino, "offset": 2 * MIB, "blocks": 1}
    text = weightfs("info", mount.path).out
    assert "the last one: 1 damaged blocks in 1 files: restore these files from a backup" in text
    assert "folder/f2: 1 blocks, the first at byte 2097152" in text
    log = (mount.store.directory / "weightfs.log").read_text()
    line = next(line for line in log.splitlines() if "scrub: /folder/f2" in line)
    assert "bytes 2097152 to 2101247 differ from their checksums (device 0:" in line and "restore the file" in line
    (mount.path / "folder/f2").write_bytes(data_of(9, 3 * MIB))
    with open(mount.path / "folder/f2", "rb+") as stream:
        os.fsync(stream.fileno())
    assert wait_for_scrub(mount.path, now())["last"]["damaged_blocks"] == 0


def test_a_read_only_mount_scrubs_and_keeps_nothing(mount):
    path = mount.path / "folder/f1"
    damage(mount, path, 0, "ro," + ALWAYS)
    assert wait_for_scrub(mount.path)["last"]["damaged_files"] == 1
    mount.umount()
    assert scrubs(mount.store.directory)["last_completed"] is None


def test_an_interrupted_scrub_continues(mount):
    remount(mount, "scrub=1,scrub_rate=1M")
    running = None

    def is_under_way():
        nonlocal running
        running = scrubs(mount.path)["running"]
        return running and running["checked_bytes"] >= 3 * MIB

    assert wait_until(is_under_way)
    mount.umount()
    assert "interrupted after" in weightfs("info", mount.store.directory).out, "an unmount does not wait for a scrub"
    mount.mount(options="scrub=1,scrub_rate=1G")
    report = wait_for_scrub(mount.path)
    assert report["last_started"] == running["started"]
    assert report["next"] > report["last_started"] and report["running"] is None


def test_damage_of_the_catalog_is_found(mount):
    for number in range(200):
        (mount.path / f"folder/g{number}").write_bytes(b"x" * 5000)
    remount(mount, ALWAYS)
    report = wait_for_scrub(mount.path)
    assert not report["last"]["catalog_damaged"]
    table = max((mount.store.directory / "meta").glob("*.sst"), key=lambda path: path.stat().st_size)
    store_files.flip(table, 300)
    assert wait_for_scrub(mount.path, now())["last"]["catalog_damaged"], "the cache of RocksDB does not hide it"
    assert "the index of the catalog is damaged: unmount and mount again" in weightfs("info", mount.path).out


@pytest.mark.parametrize("value", ["", "never", "0", "-1", "4000", "1x", "nan"])
def test_refused_values(mount, value):
    mount.umount()
    with pytest.raises(Failure, match="scrub"):
        mount.mount(options=f"scrub={value}")
