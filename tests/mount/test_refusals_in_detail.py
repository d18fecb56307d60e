"""What does not belong together, is damaged or is somebody else's is refused: one clear line, exit code not 0, and not a
byte changed."""

import json
import os
import shutil

import pytest

import store_files
from harness import needs, process
from harness.filesystems import is_mounted, weightfs
from harness.process import Failure
from store_files import refused, unchanged

pytestmark = pytest.mark.usefixtures("weightfs_only")

DEVICE_SIZE = 32 << 20


def device_files(directory, count, name="device"):
    paths = [directory / f"{name}-{number}" for number in range(count)]
    for path in paths:
        with open(path, "wb") as stream:
            stream.truncate(DEVICE_SIZE)
    return paths


@pytest.fixture
def store(factory):
    """A store that is not mounted, with one file in it."""
    made = factory.store("32M")
    mount = factory.mount(made)
    (mount.path / "file").write_bytes(b"content" * 1000)
    mount.umount()
    return made


@pytest.fixture
def point(factory):
    path = factory.directory("point")
    yield path
    assert not is_mounted(path), "a refused mount is there all the same"


def mount_is_refused(store, point, saying, options=()):
    with unchanged(store.directory, *store.devices):
        line = refused("mount", store.directory, point, *options, saying=saying)
    assert store.daemons() == []
    return line


def check_usable(factory, store):
    mount = factory.mount(store)
    assert (mount.path / "file").read_bytes() == b"content" * 1000
    mount.fsck()


# A store that is in use.
def test_a_second_mount_of_a_mounted_store(factory, store, point):
    mount = factory.mount(store)
    line = refused("mount", store.directory, point, saying="in use by process")
    assert f"process {mount.pid} (weightfs)" in line
    assert (mount.path / "file").read_bytes() == b"content" * 1000
    mount.fsck()


def test_a_second_mount_by_another_path_to_the_store(factory, store, point):
    factory.mount(store)
    alias = store.directory.with_name(store.directory.name + "-alias")
    alias.symlink_to(store.directory)
    try:
        refused("mount", alias, point, saying="in use by process")
    finally:
        alias.unlink()


@pytest.mark.parametrize("command, codes", [(["fsck"], (8,)), (["fsck", "--repair"], (8,)),
                                            (["format", "--size", "32M"], (1,)),
                                            (["format", "--size", "32M", "--force"], (1,))])
def test_commands_that_need_an_unmounted_store(factory, store, command, codes):
    mount = factory.mount(store)
    with unchanged(store.directory):
        finished = weightfs(command[0], store.directory, *command[1:], codes=codes)
    assert len(finished.err.splitlines()) == 1, finished
    assert (mount.path / "file").read_bytes() == b"content" * 1000


def test_a_device_of_a_mounted_store_is_not_formatted_into_another(factory, local):
    devices = device_files(local, 2)
    mount = factory.mount(factory.store(devices=devices))
    (mount.path / "file").write_bytes(b"content")
    with unchanged(*devices):
        refused("format", local / "other", "--device", devices[0], "--force", "--sparse", saying="locked by another process")
    assert not (local / "other").exists()
    mount.fsck()


# Devices and descriptions that do not belong together.
def test_the_device_of_another_store(factory, local, point):
    first = factory.store(devices=device_files(local, 1, "first"))
    second = factory.store(devices=device_files(local, 1, "second"))
    shutil.copy(second.devices[0], first.devices[0])
    mount_is_refused(first, point, "belongs to the store")


def test_swapped_devices(factory, local, point):
    store = factory.store(devices=device_files(local, 2))
    first, second = store.devices
    first.rename(local / "third")
    second.rename(first)
    (local / "third").rename(second)
    mount_is_refused(store, point, "is device 1 of the store, not device 0")


def test_a_missing_device(factory, local, point):
    store = factory.store(devices=device_files(local, 2))
    store.devices[1].unlink()
    line = mount_is_refused(store, point, str(store.devices[1]))
    assert "no such file" in line
    assert not store.devices[1].exists()


def test_the_catalog_of_another_store(factory, store, point):
    other = factory.store("32M")
    shutil.rmtree(store.directory / "meta")
    shutil.copytree(other.directory / "meta", store.directory / "meta")
    # RocksDB keeps a lock file and renames its own log when it opens; the rest is compared.
    refused("mount", store.directory, point, saying="the catalog belongs to the store")


def test_a_missing_catalog(store, point):
    shutil.rmtree(store.directory / "meta")
    mount_is_refused(store, point, "meta")
    assert not (store.directory / "meta").exists()


@pytest.mark.parametrize("size", [DEVICE_SIZE - 4096, DEVICE_SIZE // 2, 4096, 0])
def test_a_truncated_pool(store, point, size):
    os.truncate(store.directory / "pool", size)
    line = mount_is_refused(store, point, "pool")
    if size >= 4096:
        assert "truncated" in line


def test_a_pool_that_has_grown_is_used_as_before(factory, store):
    os.truncate(store.directory / "pool", DEVICE_SIZE * 2)
    check_usable(factory, store)


# Versions.
def describe(store, **changes):
    path = store.directory / "store.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_newer_format_in_the_description(store, point):
    describe(store, format=2)
    mount_is_refused(store, point, "newer")
    with unchanged(store.directory):
        refused("fsck", store.directory, saying="newer", codes=(8,))
        refused("info", store.directory, saying="newer")


def test_a_newer_format_in_the_superblock(store, point):
    store_files.set_superblock_field(store.directory / "pool", store_files.VERSION, 2)
    mount_is_refused(store, point, "newer")
    with unchanged(store.directory):
        refused("fsck", store.directory, saying="newer", codes=(8,))


def test_an_unknown_feature_that_forbids_reading(store, point):
    store_files.set_superblock_field(store.directory / "pool", store_files.INCOMPATIBLE_FEATURES, 1 << 40)
    mount_is_refused(store, point, "newer")


def test_an_unknown_feature_that_forbids_writing_can_be_mounted_read_only(factory, store, point):
    store_files.set_superblock_field(store.directory / "pool", store_files.READ_ONLY_FEATURES, 1 << 40)
    mount_is_refused(store, point, "-o ro")
    mount = factory.mount(store, "ro")
    assert (mount.path / "file").read_bytes() == b"content" * 1000
    mount.umount()


# Damage.
@pytest.mark.parametrize("bad", [(0,), (1,), (2,), (3,), (0, 1, 2), (1, 2, 3)])
def test_one_good_superblock_is_enough_and_the_others_are_mended(factory, store, bad):
    pool = store.directory / "pool"
    for copy in bad:
        store_files.damage_superblock(pool, copy)
    check_usable(factory, store)
    assert all(map(store_files.superblock_is_valid, store_files.superblocks(pool)))


def test_no_good_superblock(store, point):
    for copy in range(4):
        store_files.damage_superblock(store.directory / "pool", copy)
    mount_is_refused(store, point, "damaged")


def test_a_pool_without_any_superblock(store, point):
    for offset in store_files.SUPERBLOCK_OFFSETS:
        store_files.patch(store.directory / "pool", offset, bytes(store_files.SUPERBLOCK_SIZE))
    mount_is_refused(store, point, "pool")


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"format": 1}', "\0" * 500, '{"format": "1"}'])
def test_a_damaged_description(store, point, text):
    (store.directory / "store.json").write_text(text)
    mount_is_refused(store, point, "store.json")


def test_a_description_of_absurd_devices(store, point):
    device = json.loads((store.directory / "store.json").read_text())["devices"][0]
    for change in ({"index": 1}, {"size": 1 << 62}, {"size": 4096}, {"path": "nowhere"}, {"id": "x"}):
        describe(store, devices=[device | change])
        mount_is_refused(store, point, "")


def test_a_missing_lock_file_is_made_anew(factory, store):
    (store.directory / "lock").unlink()
    check_usable(factory, store)


# Where to mount.
def test_a_mountpoint_that_does_not_exist(store, point):
    mount_is_refused(store, point / "nowhere", "No such file")
    assert not (point / "nowhere").exists()


def test_a_mountpoint_that_is_a_file(store, point):
    (point / "file").touch()
    mount_is_refused(store, point / "file", "not a directory")


def test_a_mountpoint_that_is_the_mount_of_another_store(factory, store):
    other = factory.mount(factory.store("32M"))
    mount_is_refused(store, other.path, "already the mount of")
    assert other.alive()


def test_a_mountpoint_that_holds_the_store_or_lies_in_it(store):
    mount_is_refused(store, store.directory, "store")
    mount_is_refused(store, store.directory.parent, "store")
    (store.directory / "inside").mkdir()
    mount_is_refused(store, store.directory / "inside", "store")


def test_an_unknown_mount_option(store, point):
    mount_is_refused(store, point, "no_such_option", ["-o", "no_such_option"])
    mount_is_refused(store, point, "commit", ["-o", "commit=soon"])


def test_a_directory_that_is_no_store(factory, point):
    empty = factory.directory("empty")
    for command, codes in ((("mount", empty, point), (1,)), (("fsck", empty), (8,)), (("info", empty), (1,))):
        with unchanged(empty):
            refused(*command, saying="not a weightfs store" if command[0] != "info" else "store", codes=codes)
    with unchanged(empty):
        refused("mount", empty / "nowhere", point, saying="No such file")


def test_unmounting_what_is_not_mounted(store, point):
    refused("umount", point, saying="no weightfs is mounted")
    refused("umount", store.directory, saying="no weightfs is mounted")


# Format.
def format_is_refused(directory, *words, saying, among=()):
    with unchanged(directory, *among):
        return refused("format", directory, *words, saying=saying)


def test_format_over_a_store(factory, store):
    format_is_refused(store.directory, "--size", "64M", saying="already holds a store; --force")
    check_usable(factory, store)


def test_format_with_force_makes_a_new_store(factory, store):
    weightfs("format", store.directory, "--size", "64M", "--sparse", "--force")
    mount = factory.mount(store)
    assert os.listdir(mount.path) == []
    mount.fsck()


def test_format_over_the_device_of_a_store(factory, local):
    store = factory.store(devices=device_files(local, 1))
    format_is_refused(local / "other", "--device", store.devices[0], saying="a device of a weightfs store",
                      among=[store.directory, *store.devices])
    assert not (local / "other").exists()


def test_format_in_a_directory_of_other_things(local):
    (local / "thesis.tex").write_text("years of work")
    format_is_refused(local, "--size", "32M", saying="thesis.tex")


@needs.program("mkfs.ext4")
def test_format_over_an_ext4_image(local):
    image = local / "image"
    with open(image, "wb") as stream:
        stream.truncate(DEVICE_SIZE)
    process.run(["mkfs.ext4", "-q", "-L", "thesis", image])
    line = format_is_refused(local / "store", "--device", image, saying="ext4", among=[image])
    assert "thesis" in line and "--force" in line
    assert not (local / "store").exists()


def test_format_over_a_file_with_unknown_data(local):
    image = local / "image"
    with open(image, "wb") as stream:
        stream.truncate(DEVICE_SIZE)
        stream.seek(5000)
        stream.write(b"years of work")
    format_is_refused(local / "store", "--device", image, saying="byte at 5000", among=[image])


@needs.loop_devices()
@needs.program("mkfs.ext4", "losetup")
@pytest.mark.parametrize("force", [[], ["--force"]])
def test_format_over_a_mounted_block_device(local, force):
    image, directory = local / "image", local / "directory"
    directory.mkdir()
    with open(image, "wb") as stream:
        stream.truncate(DEVICE_SIZE)
    process.run(["mkfs.ext4", "-q", image])
    loop = process.run(["losetup", "--find", "--show", image]).out.strip()
    try:
        process.run(["mount", loop, directory])
        try:
            (directory / "file").write_text("years of work")
            refused("format", local / "store", "--device", loop, *force, saying=loop)
            assert not (local / "store").exists()
            process.run(["umount", directory])
            process.run(["fsck.ext4", "-fn", loop])
            process.run(["mount", loop, directory])
            assert (directory / "file").read_text() == "years of work"
        finally:
            process.run(["umount", directory], codes=None)
    finally:
        process.run(["losetup", "-d", loop])


@pytest.mark.parametrize("words, saying", [
    (["--device", "/nowhere/device"], "No such file"),
    (["--device", "/usr"], "neither a block device nor a regular file"),
    (["--device", "/dev/null"], "neither a block device nor a regular file"),
    (["--size", "1000P"], ""), (["--size", "none"], ""), (["--size", "-5M"], ""), (["--size", "0"], "")])
def test_impossible_places_and_sizes(local, words, saying):
    finished = weightfs("format", local / "store", *words, codes=None)
    assert finished.code != 0 and saying in finished.err and finished.err, finished
    assert not (local / "store").exists()


def test_a_device_given_twice(local):
    device = device_files(local, 1)[0]
    (local / "link").symlink_to(device)
    format_is_refused(local / "store", "--device", device, "--device", local / "link", saying="given twice",
                      among=[device])


def test_a_pool_larger_than_the_disk(local):
    free = os.statvfs(local).f_bavail * 4096
    size = f"{(free >> 30) + 100}G"
    refused("format", local / "store", "--size", size, saying="do not fit")
    assert not (local / "store").exists()


@pytest.mark.parametrize("words", [["mount"], ["format"], ["umount"], ["nonsense"], ["mount", "--nonsense", "a", "b"]])
def test_wrong_usage_is_told_from_failure(words):
    with pytest.raises(Failure, match="exit (?!0|1\n)"):
        weightfs(*words)
