# SPDX-License-Identifier: Apache-2.0
"""The filesystem of a store's catalog is completely full: what exists can be read and deleted, nothing is lost, and a
command that cannot go on prints one line that says so."""

import contextlib
import errno
import os
import signal

import pytest

from harness import needs, process
from harness.filesystems import wait_until, weightfs
from store_files import refused

pytestmark = [pytest.mark.usefixtures("weightfs_only"), needs.root]

COUNT = 200
LIMIT_S = 60


def fill(directory):
    """Uses up every byte of the filesystem."""
    path = directory / "filler"
    with open(path, "wb", buffering=0) as stream:
        for piece in (1 << 20, 4096, 1):
            with contextlib.suppress(OSError):
                while stream.write(bytes(piece)) == piece:
                    pass
    return path


@pytest.fixture(params=["tmpfs", pytest.param("ext4", marks=needs.loop_devices())])
def small(factory, request):
    """A small filesystem for a store."""
    path = factory.directory("small")
    if request.param == "tmpfs":
        process.run(["mount", "-t", "tmpfs", "-o", "size=96m", "none", path])
    else:
        image = factory.directory("image") / "image"
        with open(image, "wb") as stream:
            stream.truncate(96 << 20)
        process.run(["mkfs.ext4", "-q", "-m", "0", "-O", "^has_journal", image])
        process.run(["mount", "-o", "loop", image, path])
    yield path
    process.run(["umount", "-l", path])   # also if a failed test left a mount below it


@pytest.fixture
def store(factory, small):
    pool = factory.directory("pool") / "pool"
    with open(pool, "wb") as stream:
        stream.truncate(64 << 20)
    # The root of an ext4 filesystem contains lost+found.
    made = factory.store(devices=[pool], at=small / "store")
    mount = factory.mount(made)
    for number in range(COUNT):
        (mount.path / f"file-{number}").write_bytes(b"%d" % number * 500)
    mount.umount()
    return made


def check_whole(path):
    for number in range(COUNT):
        assert (path / f"file-{number}").read_bytes() == b"%d" % number * 500


def test_a_full_filesystem_still_serves_and_deletes(factory, store, small):
    """Everything is deleted, and a file written again, without a remount, although not a byte is free."""
    filler = fill(small)
    mount = factory.mount(store)
    check_whole(mount.path)
    with open(mount.path / "file-0", "r+b") as stream:
        os.utime(stream.fileno(), (1, 1))
    for number in range(COUNT):
        (mount.path / f"file-{number}").unlink()
    assert os.listdir(mount.path) == []
    (mount.path / "again").write_bytes(b"again" * 1000)
    assert "read-only" not in store.log()
    mount.umount()
    store.fsck()
    filler.unlink()
    mount = factory.mount(store)
    assert (mount.path / "again").read_bytes() == b"again" * 1000
    mount.umount()


def test_nothing_that_a_killed_mount_left_is_lost(factory, store, small):
    mount = factory.mount(store)
    (mount.path / "last").write_bytes(b"synced")
    with open(mount.path / "last", "rb") as stream:
        os.fsync(stream.fileno())
    mount.kill9()
    fill(small)
    # A check changes nothing and needs no space, and neither does a read-only mount.
    store.fsck(codes=(0, 1))
    mount = factory.mount(store)
    check_whole(mount.path)
    assert (mount.path / "last").read_bytes() == b"synced"
    mount.fsck()


def create_until_refused(directory, count=0):
    """Creates links with long targets, after `count` earlier ones. Returns their number at the first refusal."""
    for number in range(count, 100_000):
        try:
            os.symlink("x" * 4000, directory / f"link-{number}")
        except OSError as error:
            assert error.errno == errno.ENOSPC
            return number
    pytest.fail("the catalog never became full")


def is_refused(change):
    try:
        change()
    except OSError as error:
        assert error.errno == errno.ENOSPC
        return True
    return False


@pytest.mark.parametrize("filled", [False, True], ids=["catalog", "others"])
def test_who_fills_the_catalog_takes_only_creating_from_others(factory, store, small, filled):
    mount = factory.mount(store)
    if filled:
        fill(small)
    count = create_until_refused(mount.path)
    assert count > 100
    assert os.statvfs(mount.path).f_ffree < 1000
    for turn in range(20):   # RocksDB compacts the catalog again after a while, and then there is some space
        if (is_refused(lambda: (mount.path / "file-0").write_bytes(b"new"))
                and is_refused(lambda: os.setxattr(mount.path / "file-1", f"user.{turn}", b"x" * 1000))):
            break
        count = create_until_refused(mount.path, count)
    else:
        pytest.fail("a full catalog takes files and attributes")
    fill(small)
    os.chmod(mount.path / "file-1", 0o600)
    os.rename(mount.path / "file-1", mount.path / "file_1")
    for number in range(count):
        os.unlink(mount.path / f"link-{number}")
    assert wait_until(lambda: creates(mount.path / "again"))
    assert "read-only" not in store.log()
    mount.umount()
    store.fsck()


def creates(path):
    try:
        path.write_bytes(b"again")
    except OSError:
        return False
    return True


def test_a_mount_that_runs_ends_without_an_abort(factory, store, small):
    mount = factory.mount(store)
    pid = mount.pid
    filler = fill(small)
    with contextlib.suppress(OSError):
        for number in range(20_000):
            (mount.path / f"more-{number}").touch()
    weightfs("umount", mount.path, codes=None, limit=LIMIT_S)
    assert process.wait_gone(pid)
    assert "SIGABRT" not in store.log() and "Assertion" not in store.log()
    filler.unlink()
    mount = factory.mount(store)
    check_whole(mount.path)
    mount.fsck()


def all_refuse(store, point):
    for words, code in ((["mount", store.directory, point], 1),
                        (["verify", "--catalog", "--repair", store.directory], 8)):
        line = refused(*words, saying="full", codes=(code,), limit=LIMIT_S)
        assert str(store.directory) in line and "make some space" in line and "-o ro" in line
    assert store.daemons() == []


def test_without_a_reserve_a_mount_is_refused_and_loses_nothing(factory, store, small, point):
    """As with a store that an older version made."""
    (store.directory / "meta" / "reserve").unlink()
    filler = fill(small)
    all_refuse(store, point)
    store.fsck()
    mount = factory.mount(store, "ro")
    check_whole(mount.path)
    mount.umount()
    all_refuse(store, point)
    filler.unlink()
    mount = factory.mount(store, "")
    check_whole(mount.path)
    mount.fsck()


def test_a_failed_format_is_rolled_back(factory, small):
    pool = factory.directory("pool") / "pool"
    with open(pool, "wb") as stream:
        stream.truncate(64 << 20)
    filler = fill(small)
    finished = weightfs("format", small / "store", "--device", pool, codes=(1,), limit=LIMIT_S)
    assert finished.err.count("\n") == 1 and str(small) in finished.err
    assert finished.code != -signal.SIGABRT and not (small / "store").exists()
    filler.unlink()
    weightfs("format", small / "store", "--device", pool, "--force", limit=LIMIT_S)
