# SPDX-License-Identifier: Apache-2.0
"""Mismatched, damaged or foreign files are refused: with one clear line, a nonzero exit code, and no byte changed."""

import contextlib
import json
import os
import random
import re
import shlex
import shutil
import socket

import pytest

import store_files
from harness import needs, process
from harness.filesystems import weightfs
from harness.namespaces import unmount
from store_files import check_usable, devices_of, filled_store, refused, unchanged

pytestmark = pytest.mark.usefixtures("weightfs_only")

DEVICE_SIZE = 32 << 20


def device_files(directory, count, name="device"):
    paths = [directory / f"{name}-{number}" for number in range(count)]
    for path in paths:
        with open(path, "wb") as stream:
            stream.truncate(DEVICE_SIZE)
    return paths


def superblocks(device):
    with open(device, "rb") as stream:
        return [os.pread(stream.fileno(), 4096, offset) for offset in (0, 512 << 10, 1 << 20, 1536 << 10)]


def mount_is_refused(store, point, saying, options=(), but_for=(), codes=(1,)):
    with unchanged(store.directory, *store.devices, but_for=but_for):
        line = refused("mount", store.directory, point, *options, saying=saying, codes=codes)
    assert store.daemons() == []
    return line


@contextlib.contextmanager
def put_back(factory, store, part):
    """Restores a changed part of the store at the end, and checks that the store is usable again."""
    kept = factory.directory("kept") / part.name
    copy = shutil.copytree if part.is_dir() else shutil.copy
    copy(part, kept)
    yield
    if part.is_dir():
        shutil.rmtree(part)
    else:
        part.unlink(missing_ok=True)
    shutil.move(kept, part)
    check_usable(factory, store)


# A store that is in use.
def test_a_second_mount_of_a_mounted_store(factory, store, point):
    mount = factory.mount(store)
    (mount.path / "other").write_bytes(b"written before")
    line = refused("mount", store.directory, point, saying="in use by process")
    assert f"process {mount.pid} (weightfs)" in line
    assert (mount.path / "file").read_bytes() == b"content" * 1000
    assert (mount.path / "other").read_bytes() == b"written before"
    mount.fsck()
    check_usable(factory, store)


def test_a_second_mount_by_another_path_to_the_store(factory, store, point):
    factory.mount(store)
    alias = store.directory.with_name(store.directory.name + "-alias")
    alias.symlink_to(store.directory)
    try:
        refused("mount", alias, point, saying="in use by process")
    finally:
        alias.unlink()


@pytest.mark.parametrize("command, saying, code", [
    (["verify", "--catalog"], "in use by process", 8), (["verify", "--catalog", "--repair"], "in use by process", 8),
    (["format", "--size", "32M"], "already holds a store", 1),
    (["format", "--size", "32M", "--force"], "in use by process", 1)])
def test_commands_that_need_an_unmounted_store(factory, store, command, saying, code):
    mount = factory.mount(store)
    with unchanged(store.directory):
        refused(command[0], store.directory, *command[1:], saying=saying, codes=(code,))
    assert (mount.path / "file").read_bytes() == b"content" * 1000
    mount.fsck()


def test_a_device_of_a_mounted_store_is_not_formatted_into_another(factory, local):
    devices = device_files(local, 2)
    mount = factory.mount(factory.store(devices=devices))
    with open(mount.path / "file", "wb", buffering=0) as stream:
        stream.write(b"content")
        os.fsync(stream.fileno())   # otherwise the mount would write to the devices a second later
    # The mount writes the superblocks only at its start and end.
    before = [superblocks(device) for device in devices]
    refused("format", local / "other", "--device", devices[0], "--force", "--sparse",
            saying=f"in use by process {mount.pid} (weightfs)")
    assert [superblocks(device) for device in devices] == before
    assert not (local / "other").exists()
    mount.fsck()


# A mount given instead of its store.
@pytest.mark.parametrize("command", [["verify", "--catalog"], ["verify", "--catalog", "--repair"], ["mount"]],
                         ids=" ".join)
def test_a_mount_is_not_taken_for_a_store(factory, store, point, command):
    path = factory.directory("it's a") / "mount point"
    path.mkdir()
    mount = factory.mount(store, path=path)
    words = [point] if command == ["mount"] else []
    line = refused(*command, mount.path, *words, saying=f"the mount of the store {store.directory}",
                   codes=(2, 8))
    assert "format" not in line
    assert shlex.split(line.rpartition(": ")[2]) == ["weightfs", "umount", str(path)]
    (path / "folder").mkdir()
    line = refused(*command, path / "folder", *words, saying=f"the mount of the store {store.directory}", codes=(2, 8))
    assert "format" not in line
    # The same for a mount whose daemon was killed.
    process.kill(mount.pid)
    refused(*command, mount.path, *words, saying=f"the mount of the store {store.directory}", codes=(2, 8))


def test_doctor_does_not_take_a_mount_for_a_store(factory, store):
    mount = factory.mount(store)
    (mount.path / "folder").mkdir()
    for path in (mount.path, mount.path / "folder"):
        finished = weightfs("doctor", path, codes=(1,))
        assert f"the mount of the store {store.directory}; name the store" in finished.err
        assert "format" not in finished.err and "umount" not in finished.err


@needs.root
def test_another_filesystem_below_a_mount_is_no_part_of_it(factory, store):
    mount = factory.mount(store)
    (mount.path / "folder").mkdir()
    process.run(["mount", "-t", "tmpfs", "none", mount.path / "folder"])
    try:
        refused("verify", "--catalog", mount.path / "folder", saying="not a weightfs store", codes=(8,))
    finally:
        unmount(mount.path / "folder")


def test_advice_quotes_paths(factory, local):
    directory = local / "a store's"
    told = weightfs("format", directory, "--size", "32M", "--sparse").out
    assert shlex.split(told.splitlines()[-1].partition(": ")[2]) == ["weightfs", "mount", str(directory), "DIR"]
    empty = local / "not a store"
    empty.mkdir()
    refused("verify", "--catalog", empty, saying="not a weightfs store (it has no store.json); check the path",
            codes=(8,))
    (directory / "store.json").unlink()
    line = refused("verify", "--catalog", directory, saying="without its store.json", codes=(8,))
    assert shlex.split(line.rpartition(": ")[2]) == ["weightfs", "recover", str(directory)]


# Followed literally, the advice of each message keeps the data.
def test_no_message_about_a_damaged_store_leads_to_its_loss(factory, point):
    store = filled_store(factory)
    line = refused("mount", point, store.directory, saying="the store comes first", codes=(2,))
    assert shlex.split(line.rpartition(": ")[2]) == ["weightfs", "mount", str(store.directory), str(point)]
    refused("verify", "--catalog", point, saying="not a weightfs store", codes=(8,))
    (store.directory / "store.json").unlink()
    for words, code in ((["mount", store.directory, point], 1), (["verify", "--catalog", store.directory], 8),
                        (["doctor", store.directory], 1),
                        (["format", store.directory, "--size", "64M"], 1),
                        (["format", store.directory, "--size", "64M", "--force"], 1)):
        finished = weightfs(*words, codes=(code,))
        assert "weightfs recover" in finished.err + finished.out, words
    weightfs("recover", store.directory)
    check_usable(factory, store)


# Devices and descriptions that do not match.
@pytest.mark.parametrize("named", [0, 1], ids=["the pool", "a named device"])
def test_the_device_of_another_store(factory, local, point, named):
    first = filled_store(factory, device_files(local, named, "first"))
    second = filled_store(factory, device_files(local, named, "second"))
    device = devices_of(first)[0]
    with put_back(factory, first, device):
        shutil.copy(devices_of(second)[0], device)
        line = mount_is_refused(first, point, "belongs to the store")
        assert str(device) in line


def test_swapped_devices(factory, local, point):
    store = factory.store(devices=device_files(local, 2))
    first, second = store.devices
    first.rename(local / "third")
    second.rename(first)
    (local / "third").rename(second)
    with factory.mount(store).path.joinpath("file").open("wb") as stream:
        stream.write(b"content")
    assert [device["path"] for device in json.loads((store.directory / "store.json").read_text())["devices"]] \
        == [str(second), str(first)]


def test_a_missing_device(factory, local, point):
    store = factory.store(devices=device_files(local, 2))
    store.devices[1].unlink()
    line = mount_is_refused(store, point, str(store.devices[1]))
    assert "no such file" in line
    assert not store.devices[1].exists()


def test_a_pool_of_zeros_and_none_at_all(factory, store, point):
    pool = store.directory / "pool"
    with put_back(factory, store, pool):
        pool.write_bytes(bytes(DEVICE_SIZE))
        mount_is_refused(store, point, str(pool))
        pool.unlink()
        mount_is_refused(store, point, str(pool))
        assert not pool.exists()


def test_a_missing_catalog_of_a_store_that_was_never_mounted(factory, point):
    """Its devices have no log yet."""
    new = factory.store("32M")
    shutil.rmtree(new.directory / "meta")
    mount_is_refused(new, point, "meta")
    assert not (new.directory / "meta").exists()


def test_a_truncated_pool(factory, store, point):
    with put_back(factory, store, store.directory / "pool"):
        for size in (DEVICE_SIZE - 4096, DEVICE_SIZE // 2, 4096, 1000, 0):
            os.truncate(store.directory / "pool", size)
            line = mount_is_refused(store, point, "pool")
            assert "truncated" in line or size < 4096


def test_a_pool_that_has_grown_is_used_as_before(factory, store):
    os.truncate(store.directory / "pool", DEVICE_SIZE * 2)
    check_usable(factory, store)


# Versions.
def describe(store, **changes):
    path = store.directory / "store.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def newer_is_refused(store, point):
    line = mount_is_refused(store, point, "newer")
    with unchanged(store.directory):
        refused("verify", "--catalog", store.directory, saying="newer", codes=(8,))
    return line


@pytest.mark.parametrize("version", [2, 99])
def test_a_newer_format_in_the_description(factory, store, point, version):
    with put_back(factory, store, store.directory / "store.json"):
        describe(store, format=version)
        assert f"format {version} is" in newer_is_refused(store, point)
        with unchanged(store.directory):
            refused("info", store.directory, saying="newer")


def test_a_newer_format_in_the_superblock(factory, store, point):
    with put_back(factory, store, store.directory / "pool"):
        store_files.set_superblock_field(store.directory / "pool", store_files.VERSION, 2)
        assert "version" in newer_is_refused(store, point)


def test_an_unknown_feature_that_forbids_reading(factory, store, point):
    with put_back(factory, store, store.directory / "pool"):
        store_files.set_superblock_field(store.directory / "pool", store_files.INCOMPATIBLE_FEATURES, 1 << 40)
        assert "pool" in newer_is_refused(store, point)


def test_an_unknown_feature_that_forbids_writing_can_be_mounted_read_only(factory, store, point):
    store_files.set_superblock_field(store.directory / "pool", store_files.READ_ONLY_FEATURES, 1 << 40)
    mount_is_refused(store, point, "-o ro")
    mount = factory.mount(store, "ro")
    assert (mount.path / "file").read_bytes() == b"content" * 1000
    mount.umount()


# Damage.
def erase_superblock(path, copy):
    store_files.patch(path, store_files.SUPERBLOCK_OFFSETS[copy], bytes(store_files.SUPERBLOCK_SIZE))


def scramble_superblock(path, copy):
    store_files.patch(path, store_files.SUPERBLOCK_OFFSETS[copy],
                      random.Random(copy).randbytes(store_files.SUPERBLOCK_SIZE))


@pytest.mark.parametrize("harm", [store_files.damage_superblock, erase_superblock])
@pytest.mark.parametrize("bad", [(0,), (1,), (2,), (3,), (0, 1, 2), (1, 2, 3)])
def test_one_good_superblock_is_enough_and_the_others_are_mended(factory, store, bad, harm):
    pool = store.directory / "pool"
    for copy in bad:
        harm(pool, copy)
    check_usable(factory, store)
    assert all(map(store_files.superblock_is_valid, store_files.superblocks(pool)))


@pytest.mark.parametrize("harm, saying", [(store_files.damage_superblock, "damaged"), (erase_superblock, "pool"),
                                          (scramble_superblock, "pool")])
def test_no_good_superblock(store, point, harm, saying):
    for copy in range(4):
        harm(store.directory / "pool", copy)
    mount_is_refused(store, point, saying)


def test_a_damaged_description(factory, store, point):
    with put_back(factory, store, store.directory / "store.json"):
        for text in ("", "{", "{ broken", "[]", "{}", '{"format": 1}', "\0" * 500, '{"format": "1"}'):
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


# Mount points.
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
    (store.directory / "inside").mkdir()
    for point in (store.directory, store.directory.parent, store.directory / "inside"):
        mount_is_refused(store, point, "store", codes=(2,))


def test_options_that_are_unknown_or_impossible(store, point):
    for option in ("no_such_option", "without=nonsense", "threads=0", "commit=-1", "commit=soon", "memory=1"):
        mount_is_refused(store, point, option, ["-o", option], codes=(2,))


# Errors say the next step.
def test_a_port_for_metrics_that_is_in_use(store, point):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        # The store has been opened by then.
        refused("mount", store.directory, point, "-o", f"metrics=127.0.0.1:{port}",
                saying="another program listens there: choose another port")


def test_a_mount_whose_daemon_was_killed_names_the_unmount(factory, store):
    mount = factory.mount(store)
    pid = mount.pid
    process.kill(pid)
    assert process.wait_gone(pid)
    for words, code in ((["info", mount.path], 1), (["stats", mount.path], 1),
                        (["stats", "--by", "file", mount.path], 1), (["publish", mount.path / "a"], 1),
                        (["verify", mount.path], 8)):
        refused(*words, saying="'weightfs umount' removes the mount", codes=(code,))
    lines = weightfs("info", store.directory).out.splitlines()
    assert f"         the mount on {mount.path} is stale: weightfs umount {mount.path}" in lines


@needs.root
def test_a_mount_for_its_user_alone_names_the_option(factory, store):
    mount = factory.mount(store)
    (mount.path / "folder").mkdir()
    for command in (("info",), ("stats",), ("stats", "--by", "file"), ("publish",), ("verify",)):
        for path in (mount.path, mount.path / "folder"):
            finished = weightfs(*command, path, codes=(1, 8), user=65534)
            assert finished.err.count("\n") == 1 and "or mount with -o allow_other" in finished.err, finished


def test_a_store_whose_parent_directory_is_missing(local):
    refused("format", local / "a/b", "--size", "32M", saying="create the directory that holds it first")


def test_a_mount_says_what_it_hides(factory, store, point):
    (point / "forgotten").mkdir()
    (point / "file").write_text("written without a mount")
    line, = weightfs("mount", store.directory, point).err.splitlines()
    assert f"{point}: not empty: the mount hides 2 entries" in line and "chattr +i" in line
    weightfs("umount", point)
    shutil.rmtree(point / "forgotten")
    (point / "file").unlink()
    assert weightfs("mount", store.directory, point).err == ""
    weightfs("umount", point)


def test_help_fits_a_terminal():
    listed = re.findall(r"^  ([a-z]+) +[A-Z]", weightfs("--help").out.partition("Subcommands:")[2], re.MULTILINE)
    assert {"format", "mount", "push", "stats"} <= set(listed)
    for command in listed:
        text = weightfs(command, "--help").out
        assert max(map(len, text.partition("Options")[2].partition("\n\n")[0].splitlines())) <= 100, command
        assert weightfs("help", command).out == text
        assert "FLOAT" not in text
    assert weightfs("help").out == weightfs("--help").out
    assert weightfs("-V").out == weightfs("--version").out


@pytest.mark.parametrize("name, mount, fsck, info", [
    ("empty", "not a weightfs store", "not a weightfs store", "neither a store"),
    ("file", "not a weightfs store", "not a weightfs store", "neither a store"),
    ("missing", "No such file", "No such file", "No such file")])
def test_a_directory_that_is_not_a_store(local, point, name, mount, fsck, info):
    (local / "empty").mkdir()
    (local / "file").write_text("years of work")
    with unchanged(local):
        refused("mount", local / name, point, saying=mount)
        refused("verify", "--catalog", local / name, saying=fsck, codes=(8,))
        refused("info", local / name, saying=info)
    assert sorted(os.listdir(local)) == ["empty", "file"] and os.listdir(local / "empty") == []


def test_unmounting_a_directory_that_is_not_mounted(store, point):
    for place in (point, point / "nowhere", store.directory, "/proc"):
        refused("umount", place, saying="no weightfs is mounted")


# Format.
def format_is_refused(directory, *words, saying, among=(), codes=(1,)):
    with unchanged(directory, *among):
        return refused("format", directory, *words, saying=saying, codes=codes)


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
    weightfs("format", local / "store", "--device", image, "--force")


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
            unmount(directory)
            process.run(["fsck.ext4", "-fn", loop])
            process.run(["mount", loop, directory])
            assert (directory / "file").read_text() == "years of work"
        finally:
            process.run(["umount", "-l", directory], codes=None)
    finally:
        process.run(["losetup", "-d", loop])


@pytest.mark.parametrize("words, saying, code", [
    (["--device", "/nowhere/device"], "No such file", 1),
    (["--device", "/usr"], "neither a block device nor a regular file", 1),
    (["--device", "/dev/null"], "neither a block device nor a regular file", 1),
    (["--size", "0"], "too small", 1), (["--size", "1K"], "too small", 1), (["--size", "1M"], "too small", 1),
    (["--size", "1000P"], "does not fit", 1), (["--size", "none"], "not a size", 2),
    (["--size", "-5M"], "not a size", 2), (["--size", "8Q"], "not a size", 2)])
def test_impossible_places_and_sizes(local, words, saying, code):
    format_is_refused(local / "store", *words, saying=saying, codes=(code,))
    assert not (local / "store").exists()


def test_a_device_given_twice(local):
    device = device_files(local, 1)[0]
    (local / "link").symlink_to(device)
    format_is_refused(local / "store", "--device", device, "--device", local / "link", saying="given twice",
                      among=[device])


def test_a_pool_larger_than_the_disk(local):
    free = os.statvfs(local).f_bavail * 4096
    size = f"{(free >> 30) + 100}G"
    refused("format", local / "store", "--size", size, saying="does not fit")
    assert not (local / "store").exists()


# The program's command line.
@pytest.mark.parametrize("words", [[], ["nonsense"], ["format"], ["mount"], ["umount"], ["mount", "a", "b", "c", "d"],
                                   ["mount", "--nonsense", "a", "b"]])
def test_wrong_usage_and_failure_have_different_exit_codes(words):
    assert weightfs(*words, codes=(2,)).err.strip()


def test_help_and_version():
    for words in (["--help"], ["--version"], *([name, "--help"] for name in
                                               ("format", "mount", "umount", "verify", "info", "doctor", "bench"))):
        assert weightfs(*words).out.strip(), words
