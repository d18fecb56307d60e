# SPDX-License-Identifier: Apache-2.0
"""Files that another user put into a store's directory: weightfs must not follow, truncate or write them, nor block on
them. Also tests what other users may see of a store."""

import contextlib
import os
import shutil
import stat

import pytest

from harness import needs, process
from harness.filesystems import is_mounted, weightfs
from harness.users import OTHER, call_as
from store_files import check_usable, refused, unchanged

pytestmark = pytest.mark.usefixtures("weightfs_only")

LIMIT_S = 60


@pytest.fixture
def target(factory):
    path = factory.directory("elsewhere") / "target"
    path.write_text("years of work\n")
    return path


@contextlib.contextmanager
def aside(path):
    """Moves the file away for the block. At the end, whatever the test put in its place is removed."""
    kept = path.with_name("kept-aside") if path.parent.name != "meta" else path.parent.parent / "kept-aside"
    path.rename(kept)
    try:
        yield kept
    finally:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
        kept.rename(path)


def all_refuse(store, point, name, saying):
    """Runs every command that opens the file. A command that opened it would still be waiting after LIMIT_S."""
    commands = [(["mount", store.directory, point], 1), (["verify", "--catalog", store.directory], 8),
                (["verify", "--catalog", "--repair", store.directory], 8)]
    if name != "lock":
        commands.append((["info", store.directory], 1))
    if name in ("lock", "pool"):
        commands.append((["format", "--force", "--size", "32M", "--sparse", store.directory], 1))
    for words, code in commands:
        line = None
        if words[0] == "info" and name not in ("store.json",):
            finished = weightfs(*words, codes=(code,), limit=LIMIT_S)
            line = finished.err.splitlines()[-1]
            assert saying in line, finished
        else:
            line = refused(*words, saying=saying, codes=(code,), limit=LIMIT_S)
        assert name in line
    assert store.daemons() == []


FILES = ["lock", "store.json", "pool", "meta/CURRENT"]


@pytest.mark.parametrize("name", FILES)
def test_a_link_is_not_followed(factory, store, point, target, name):
    with aside(store.directory / name):
        (store.directory / name).symlink_to(target)
        all_refuse(store, point, name, "symbolic link")
    assert target.read_text() == "years of work\n"
    check_usable(factory, store)


@pytest.mark.parametrize("name", FILES)
def test_a_link_to_the_correct_file_is_not_followed_either(factory, store, point, name):
    with aside(store.directory / name) as kept:
        (store.directory / name).symlink_to(kept)
        with unchanged(kept):
            all_refuse(store, point, name, "symbolic link")
    check_usable(factory, store)


@pytest.mark.parametrize("name", FILES)
def test_a_fifo_is_not_waited_for(factory, store, point, name):
    with aside(store.directory / name):
        os.mkfifo(store.directory / name)
        all_refuse(store, point, name, "FIFO")
    check_usable(factory, store)


def test_a_catalog_that_is_a_link(factory, store, point):
    with aside(store.directory / "meta") as kept:
        (store.directory / "meta").symlink_to(kept)
        with unchanged(kept):
            refused("mount", store.directory, point, saying="symbolic link")
            refused("verify", "--catalog", "--repair", store.directory, saying="symbolic link", codes=(8,))
    check_usable(factory, store)


@pytest.mark.parametrize("make", ["link", "dangling", "fifo", "second name"])
def test_the_log_is_appended_to_nothing_else(factory, store, point, target, make):
    log = store.directory / "weightfs.log"
    log.unlink()
    if make == "fifo":
        os.mkfifo(log)
    elif make == "second name":
        log.hardlink_to(target)
    else:
        log.symlink_to(target if make == "link" else target.with_name("missing"))
    refused("mount", store.directory, point, saying="weightfs.log", limit=LIMIT_S)
    assert target.read_text() == "years of work\n" and os.listdir(target.parent) == ["target"]
    log.unlink()
    check_usable(factory, store)


def test_a_lock_with_a_second_name_is_not_written(factory, store, point, target):
    (store.directory / "lock").unlink()
    (store.directory / "lock").hardlink_to(target)
    all_refuse(store, point, "lock", "one of 2 names")
    assert target.read_text() == "years of work\n"
    (store.directory / "lock").unlink()
    check_usable(factory, store)


@needs.root
@pytest.mark.parametrize("name", FILES)
def test_a_strangers_file_is_refused(factory, store, point, name):
    os.chown(store.directory / name, OTHER, OTHER)
    all_refuse(store, point, name, f"belongs to user {OTHER}")
    os.chown(store.directory / name, 0, 0)
    check_usable(factory, store)


def test_unmounting_waits_for_no_fifo(factory, store):
    mount = factory.mount(store)
    (store.directory / "lock").unlink()
    os.mkfifo(store.directory / "lock")
    pid = mount.pid
    refused("umount", mount.path, saying="it is unknown whether all data is on the device", limit=LIMIT_S)
    assert not is_mounted(mount.path) and process.wait_gone(pid)
    (store.directory / "lock").unlink()
    check_usable(factory, store)


def test_a_file_name_cannot_forge_lines_in_the_log(factory, store):
    path = factory.directory("point") / "a\nweightfs: error: \x1b[2Jforged"
    path.mkdir()
    weightfs("mount", store.directory, path)
    weightfs("umount", path)
    lines = (store.directory / "weightfs.log").read_text().splitlines()
    assert all(line[:2] == "20" and line[4] == "-" for line in lines), lines
    assert any(r"a\x0aweightfs: error: \x1b[2Jforged" in line for line in lines), lines


def test_a_file_name_cannot_forge_lines_on_the_terminal(local):
    line = refused("mount", local / "a\n\x1b[2Jb", local, saying="No such file")
    assert r"a\x0a\x1b[2Jb" in line


# Visibility for other users.
def modes(directory):
    found = {}
    for path in directory.rglob("*"):
        with contextlib.suppress(FileNotFoundError):   # RocksDB deletes files at any time
            found[path.relative_to(directory).as_posix()] = stat.S_IMODE(path.lstat().st_mode)
    return found


PRIVATE = {"lock", "pool", "weightfs.log", "meta"}


def check_private(directory):
    for name, mode in modes(directory).items():
        if name.split("/")[0] in PRIVATE:
            assert mode == (0o700 if name == "meta" else 0o600), f"{name} has mode {mode:o}"


@pytest.mark.parametrize("mask", [0, 0o022, 0o777])
def test_a_store_in_an_existing_directory_is_its_owners_alone(factory, local, mask):
    before = os.umask(mask)
    try:
        weightfs("format", local, "--size", "32M", "--sparse")
        check_private(local)
        point = factory.directory("point")
        point.chmod(0o755)
        weightfs("mount", local, point)
        try:
            for number in range(100):
                (point / f"file-{number}").touch()
            check_private(local)
        finally:
            weightfs("umount", point)
        check_private(local)
    finally:
        os.umask(before)


def test_permissions_of_others_are_taken_at_the_next_mount(factory, store):
    for path in [store.directory, *store.directory.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    with factory.mount(store).path.joinpath("more").open("wb") as stream:
        stream.write(b"x")
    check_private(store.directory)
    assert modes(store.directory)["store.json"] == 0o644, "it holds no names"


def test_the_daemons_umask_is_not_that_of_its_users(factory, store):
    mount = factory.mount(store)
    before = os.umask(0)
    try:
        os.close(os.open(mount.path / "made", os.O_CREAT | os.O_WRONLY, 0o666))
        os.mkdir(mount.path / "directory", 0o777)
        os.mknod(mount.path / "node", 0o666 | stat.S_IFIFO)
    finally:
        os.umask(before)
    found = {name: stat.S_IMODE((mount.path / name).stat().st_mode) for name in ("made", "directory", "node")}
    assert found == {"made": 0o666, "directory": 0o777, "node": 0o666}


@needs.root
def test_a_user_can_mount_after_root_has(factory, store, point):
    """What root creates in a user's store belongs to the user."""
    for path in [store.directory, *store.directory.rglob("*")]:
        os.chown(path, OTHER, OTHER)
    (store.directory / "lock").unlink()
    (store.directory / "weightfs.log").unlink()
    mount = factory.mount(store)
    for number in range(100):
        (mount.path / f"file-{number}").touch()
    mount.umount()
    weightfs("verify", "--catalog", "--repair", store.directory)
    owners = {path.relative_to(store.directory).as_posix(): path.stat().st_uid for path in store.directory.rglob("*")}
    assert set(owners.values()) == {OTHER}, owners
    call_as(OTHER, weightfs, "verify", "--catalog", store.directory)
