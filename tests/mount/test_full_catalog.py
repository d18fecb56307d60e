# SPDX-License-Identifier: Apache-2.0
"""The filesystem of a store's catalog is completely full: every command prints one line that says so, and nothing is
lost once there is space again."""

import contextlib
import os
import signal

import pytest

from harness import needs, process
from harness.filesystems import weightfs
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
    """A small filesystem for a store. RocksDB reserves some 18 MiB for a log, also for the log of a killed mount."""
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


def all_refuse(store, point):
    for words, code in ((["mount", store.directory, point], 1), (["fsck", "--repair", store.directory], 8)):
        line = refused(*words, saying="full", codes=(code,), limit=LIMIT_S)
        assert str(store.directory) in line and "make some space" in line and "-o ro" in line
    assert store.daemons() == []


def test_a_mount_is_refused_and_loses_nothing(factory, store, small, point):
    filler = fill(small)
    all_refuse(store, point)
    # A check changes nothing and needs no space, and neither does a read-only mount.
    store.fsck()
    mount = factory.mount(store, "ro")
    check_whole(mount.path)
    mount.umount()
    all_refuse(store, point)
    filler.unlink()
    mount = factory.mount(store, "")
    check_whole(mount.path)
    mount.fsck()


def test_nothing_that_a_killed_mount_left_is_lost(factory, store, small, point):
    mount = factory.mount(store)
    (mount.path / "last").write_bytes(b"synced")
    with open(mount.path / "last", "rb") as stream:
        os.fsync(stream.fileno())
    mount.kill9()
    filler = fill(small)
    all_refuse(store, point)
    filler.unlink()
    mount = factory.mount(store)
    check_whole(mount.path)
    assert (mount.path / "last").read_bytes() == b"synced"
    mount.fsck()


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
