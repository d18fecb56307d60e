# SPDX-License-Identifier: Apache-2.0
"""Stores in partitions that `format --partition` makes, and what happens to disks that have something on them."""

import concurrent.futures
import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest

import store_files
from harness import needs, process
from harness.filesystems import REPOSITORY, weightfs
from harness.users import NOBODY, call_as

pytestmark = [pytest.mark.usefixtures("weightfs_only"), needs.loop_devices(),
              needs.program("sfdisk", "losetup", "partx", "blkid", "wipefs", "mkfs.ext4")]

MIB = 1 << 20
TYPE = "7fe1dc2d-3f1d-4f5a-87bb-727b913520e3"


class Disk:
    """A loop device that can have partitions."""

    def __init__(self, image):
        with open(image, "wb") as stream:
            stream.truncate(40 * MIB)
        self.path = process.run(["losetup", "--partscan", "--find", "--show", image]).out.strip()
        self.partition = self.path + "p1"

    def digest(self):
        return hashlib.sha256(store_files.read_at(self.path, 0, 40 * MIB)).hexdigest()

    def make_partitions(self, *lines):
        process.run(["sfdisk", "--quiet", self.path], input="label: gpt\n" + "\n".join(lines) + "\n")
        if lines:
            process.run(["partx", "--update", self.path])   # the kernel may be unable to read a GPT

    def properties(self):
        out = process.run(["blkid", "-p", "-o", "export", self.partition]).out
        return dict(line.split("=", 1) for line in out.splitlines())

    def detach(self):
        process.run(["partx", "--delete", self.path], codes=None)
        process.run(["losetup", "--detach", self.path])


@pytest.fixture
def disks(local):
    made = []
    try:
        for number in range(2):
            made.append(Disk(local / f"image{number}"))
        yield made
    finally:
        for disk in made:
            disk.detach()


def devices_of(*disks):
    return [word for disk in disks for word in ("--device", disk.path)]


def refused(*words, saying, **options):
    finished = weightfs(*words, codes=(1,), **options)
    assert saying in finished.err and len(finished.err.splitlines()) == 1, finished
    return finished


def check_store(factory, store, content=b"data" * 1000):
    mount = factory.mount(store)
    (mount.path / "file").write_bytes(content)
    mount.remount()
    assert (mount.path / "file").read_bytes() == content
    mount.fsck()


def test_a_store_in_partitions_of_two_disks(disks, factory):
    store = factory.store(devices=[disk.path for disk in disks], partition=True)
    described = json.loads((store.directory / "store.json").read_text())
    for disk, device in zip(disks, described["devices"], strict=True):
        properties = disk.properties()
        assert properties["PART_ENTRY_TYPE"] == TYPE
        assert properties["PART_ENTRY_NAME"] == f"weightfs-{described['id'][:8]}-{device['index']}"
        assert properties["PART_ENTRY_UUID"] == device["id"]
        assert properties["PART_ENTRY_OFFSET"] == "2048" and device["size"] == 38 * MIB
        assert os.path.samefile(device["path"], disk.partition)
        link = f"/dev/disk/by-partuuid/{device['id']}"
        assert device["path"] == (link if os.path.exists(link) else disk.partition)
    check_store(factory, store)


def test_recover_names_the_partition_of_a_disk(disks, factory, local):
    store = factory.store(devices=[disks[0].path], partition=True)
    check_store(factory, store, b"kept")
    shutil.rmtree(store.directory)
    before = disks[0].digest()
    refused("recover", local / "new", *devices_of(disks[0]), saying=f"--device {disks[0].partition}\n")
    assert disks[0].digest() == before
    weightfs("recover", local / "new", "--device", disks[0].partition)
    store.directory = local / "new"
    mount = factory.mount(store)
    assert (mount.path / "file").read_bytes() == b"kept"
    mount.fsck()


def test_a_lost_partition_table_is_told_and_can_be_restored(disks, factory, local):
    store = factory.store(devices=[disks[0].path], partition=True)
    check_store(factory, store, b"kept")
    process.run(["wipefs", "--all", "--force", disks[0].path])
    process.run(["partx", "--delete", disks[0].path], codes=None)
    assert not os.path.exists(disks[0].partition)
    before = disks[0].digest()
    refused("recover", local / "new", *devices_of(disks[0]), saying="begins at its byte 1048576")
    for force in ([], ["--force"]):
        refused("format", local / "other", "--partition", *devices_of(disks[0]), *force,
                saying="'weightfs recover' rebuilds a store that has lost its directory, and --discard-damaged")
    assert disks[0].digest() == before
    disks[0].make_partitions(f"start=1MiB, type={TYPE}")
    mount = factory.mount(store)
    assert (mount.path / "file").read_bytes() == b"kept"
    mount.fsck()


def with_filesystem(disk):
    process.run(["mkfs.ext4", "-q", disk.path])


def with_partition(disk):
    disk.make_partitions("start=1MiB")
    process.run(["mkfs.ext4", "-q", disk.partition])


def with_partition_of_ours_in_use(disk):
    disk.make_partitions(f"start=1MiB, type={TYPE}")
    process.run(["mkfs.ext4", "-q", disk.partition])


def with_data(disk):
    store_files.patch(disk.path, 5000, b"years of work")


@pytest.mark.parametrize("fill, saying", [
    (with_filesystem, "already holds a signature of ext4 (filesystem); --force overwrites it"),
    (with_partition, "already holds a partition table (gpt) with 1 partition, and in {0}p1 a signature of ext4 "
                     "(filesystem); 'sfdisk --delete {0}' removes its partitions"),
    (with_partition_of_ours_in_use, "'sfdisk --delete {0}' removes its partitions"),
    (lambda disk: disk.make_partitions("start=1MiB, size=1MiB", f"type={TYPE}"), "'sfdisk --delete {0}' removes"),
    (lambda disk: disk.make_partitions(), "partition table (gpt) with 0 partitions; --force overwrites it"),
    (with_data, "already holds data (the byte at 5000 is not zero); --force overwrites it")])
def test_neither_disk_changes_if_one_is_not_empty(disks, local, fill, saying):
    fill(disks[1])
    before = [disk.digest() for disk in disks]
    words = ["format", local / "store", "--partition", *devices_of(*disks)]
    refused(*words, saying=f"{disks[1].path}: " if "{" in saying else saying)
    assert saying.format(disks[1].path) in weightfs(*words, codes=(1,)).err
    if "--force" not in saying:
        refused(*words, "--force", saying=saying.format(disks[1].path))
    assert [disk.digest() for disk in disks] == before and not (local / "store").exists()
    if "--force" in saying:
        weightfs(*words, "--force")
        assert [disk.properties()["PART_ENTRY_TYPE"] for disk in disks] == [TYPE, TYPE]
        weightfs("verify", "--catalog", local / "store")


@pytest.mark.parametrize("which", ["path", "partition"])
def test_a_disk_in_use_is_refused(disks, local, which):
    if which == "partition":
        disks[1].make_partitions(f"start=1MiB, type={TYPE}")
    descriptor = os.open(getattr(disks[1], which), os.O_RDONLY | os.O_EXCL)
    try:
        before = [disk.digest() for disk in disks]
        refused("format", local / "store", "--partition", *devices_of(*disks), "--force", saying=disks[1].path)
        assert [disk.digest() for disk in disks] == before and not (local / "store").exists()
    finally:
        os.close(descriptor)


def test_a_store_on_the_whole_disk_is_gone_after_a_format_with_force(disks, factory, local):
    store = factory.store(devices=[disks[0].path])
    check_store(factory, store)
    refused("format", local / "new", "--partition", *devices_of(disks[0]), saying="a device of a weightfs store")
    weightfs("format", local / "new", "--partition", "--force", *devices_of(disks[0]))
    process.run(["sfdisk", "--quiet", "--delete", disks[0].path])
    process.run(["partx", "--delete", disks[0].path], codes=None)
    refused("recover", local / "old", *devices_of(disks[0]), saying=disks[0].path)
    assert b"WEIGHTFS" not in store_files.read_at(disks[0].path, 0, MIB)


@pytest.mark.parametrize("script", [
    '/usr/sbin/sfdisk "$@"; [ "$1" = --version ] || kill -9 $PPID',
    '[ "$1" = --version ] || kill -9 $PPID',
    '[ "$1" = --version ] || { echo no luck; exit 3; }'], ids=["after", "before", "failed"])
def test_a_format_that_ended_early_can_be_repeated(disks, factory, local, script):
    fake = local / "sfdisk"
    fake.write_text(f"#!/bin/sh\n{script}\n")
    fake.chmod(0o755)
    words = ["format", local / "store", "--partition", *devices_of(*disks)]
    finished = weightfs(*words, codes=None, env={**os.environ, "PATH": f"{local}:{os.environ['PATH']}"})
    assert finished.code == (1 if "luck" in script else -9), finished
    assert "luck" not in script or finished.err == (
        f"weightfs: {disks[0].path}: cannot be partitioned: sfdisk failed with 3: no luck \n"), finished
    weightfs(*words)
    weightfs("verify", "--catalog", local / "store")
    assert disks[0].properties()["PART_ENTRY_TYPE"] == TYPE


def test_a_missing_sfdisk_is_told_before_anything_changes(disks, factory, local):
    store = factory.store("32M")
    before = [disk.digest() for disk in disks]
    refused("format", store.directory, "--partition", "--force", *devices_of(*disks), saying="install it",
            env={**os.environ, "PATH": os.fspath(local)})
    assert [disk.digest() for disk in disks] == before
    store.fsck()


def test_only_whole_disks_get_partitions(disks, local):
    disks[0].make_partitions("start=1MiB")
    for given, saying in ((local / "image0", "not a block device"), (disks[0].partition, "is itself a partition"),
                          ("/nowhere", "No such file")):
        refused("format", local / "store", "--partition", "--device", given, saying=saying)
    assert "name the disk with --device" in weightfs("format", local / "store", "--partition", "--size", "32M",
                                                     codes=(2,)).err
    refused("format", local / "store", "--partition", *devices_of(disks[1], disks[1]), saying="given twice")
    assert not (local / "store").exists()


def test_a_disk_without_partitions_in_the_kernel_is_refused(local):
    with open(local / "image", "wb") as stream:
        stream.truncate(40 * MIB)
    loop = process.run(["losetup", "--find", "--show", local / "image"]).out.strip()
    try:
        refused("format", local / "store", "--partition", "--device", loop, saying="omit --partition")
        assert not store_files.read_at(loop, 0, 40 * MIB).strip(b"\0")
    finally:
        process.run(["losetup", "--detach", loop])


def weightfs_fails(*words):
    return weightfs(*words, codes=(1,))


def test_a_user_who_may_write_the_disk_is_told_to_be_root(disks, local):
    mode = os.stat(disks[0].path).st_mode
    os.chmod(disks[0].path, 0o666)
    local.chmod(0o777)
    try:
        before = disks[0].digest()
        finished = call_as(NOBODY, weightfs_fails, "format", local / "store", "--partition", *devices_of(disks[0]))
        assert "run it as root" in finished.err and len(finished.err.splitlines()) == 1, finished
        assert disks[0].digest() == before
    finally:
        os.chmod(disks[0].path, mode)


def test_of_two_formats_of_a_disk_at_once_one_wins(disks, local):
    def make(number):
        return weightfs("format", local / f"store{number}", "--partition", *devices_of(disks[0]), codes=(0, 1))
    for _ in range(5):
        with concurrent.futures.ThreadPoolExecutor() as pool:
            made = list(pool.map(make, range(2)))
        good = [number for number, finished in enumerate(made) if finished.code == 0]
        assert len(good) <= 1, made
        for number in good:
            weightfs("verify", "--catalog", local / f"store{number}")
        for number in range(2):
            shutil.rmtree(local / f"store{number}", ignore_errors=True)
        process.run(["partx", "--delete", disks[0].path], codes=None)
        process.run(["blkdiscard", "--zeroout", "--force", disks[0].path])


def test_udev_gets_the_properties_of_a_device(disks, factory):
    store = factory.store(devices=[disks[0].path], partition=True)
    described = json.loads((store.directory / "store.json").read_text())
    out = weightfs("info", "--udev", disks[0].partition).out
    properties = dict(line.split("=", 1) for line in out.splitlines())
    assert properties["ID_FS_TYPE"] == "weightfs" and properties["ID_FS_USAGE"] == "other"
    assert properties["ID_FS_UUID"] == properties["ID_FS_UUID_ENC"] == described["id"]
    assert properties["ID_FS_UUID_SUB"] == described["devices"][0]["id"]
    assert properties["ID_FS_LABEL"] == disks[0].properties()["PART_ENTRY_NAME"]
    for other in (disks[0].path, disks[1].path, "/dev/null", "/nowhere"):
        refused("info", "--udev", other, saying=other)


def test_the_rule_and_the_documents_have_the_type():
    for path in ("packaging/65-weightfs.rules", "docs/FORMAT.md", "docs/OPERATIONS.md"):
        assert TYPE in Path(REPOSITORY, path).read_text(), path


@needs.program("udevadm", hint="package udev")
def test_udev_accepts_the_rule():
    if "verify" not in process.run(["udevadm", "--help"]).out:
        pytest.skip("needs udevadm verify: systemd 254 or newer")
    process.run(["udevadm", "verify", REPOSITORY / "packaging/65-weightfs.rules"])
