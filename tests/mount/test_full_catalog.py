# SPDX-License-Identifier: Apache-2.0
"""Other programs fill the filesystem of a store's catalog: what exists can be read and deleted, nothing is lost, the
catalog catches up when they free some space, and a command that cannot go on prints one line that says so."""

import contextlib
import os
import signal
import struct

import pytest

from harness import needs, process
from harness.filesystems import wait_until, weightfs
from small_filesystem import fill, is_refused, new_store
from store_files import ROOT_OFFSETS, read_at

pytestmark = [pytest.mark.usefixtures("weightfs_only"), needs.root]

COUNT = 200
LIMIT_S = 60


@pytest.fixture
def store(factory, small):
    made = new_store(factory, small, 64 << 20)
    mount = factory.mount(made)
    for number in range(COUNT):
        (mount.path / f"file-{number}").write_bytes(b"%d" % number * 500)
    mount.umount()
    return made


def check_whole(path):
    for number in range(COUNT):
        assert (path / f"file-{number}").read_bytes() == b"%d" % number * 500


def checkpoint_of(store):
    """The last change that the checkpoint on the device has."""
    roots = [struct.unpack("<QqQQ", read_at(store.devices[0], offset + 48, 32)) for offset in ROOT_OFFSETS]
    return max(roots)[3]


def wait_until_full(mount):
    """The free space is measured once a second."""
    assert wait_until(lambda: is_refused(lambda: os.setxattr(mount.path / "file-1", "user.name", b"value")))
    assert is_refused(lambda: (mount.path / "more").touch())


def write_without_space(mount):
    """Changes and deletes files until a checkpoint has the changes, which the index cannot store."""
    before = checkpoint_of(mount.store)
    wait_until_full(mount)

    def change():
        for mode in (0o600, 0o644) * 200:
            os.chmod(mount.path / "file-0", mode)
        return checkpoint_of(mount.store) > before

    assert wait_until(change)
    for number in range(1, COUNT):
        (mount.path / f"file-{number}").unlink()
    assert os.listdir(mount.path) == ["file-0"]
    assert is_refused(lambda: (mount.path / "more").touch())


def check_written(path):
    assert os.listdir(path) == ["file-0"] and (path / "file-0").read_bytes() == b"0" * 500


def test_a_full_filesystem_still_serves_and_deletes(factory, store, small):
    mount = factory.mount(store)
    filler = fill(small)
    check_whole(mount.path)
    wait_until_full(mount)
    os.rename(mount.path / "file-1", mount.path / "file_1")
    os.rename(mount.path / "file_1", mount.path / "file-1")
    write_without_space(mount)
    filler.unlink()
    assert wait_until(lambda: not is_refused(lambda: (mount.path / "again").write_bytes(b"again")))
    log = store.log()
    assert log.count("the filesystem of the catalog is full") == log.count("has space again") == 1
    assert "read-only" not in log
    mount.fsck()
    mount.mount()
    assert (mount.path / "again").read_bytes() == b"again"


def test_an_unmount_does_not_wait_for_space(factory, store, small):
    """The next mount takes what the index lacks from the device."""
    mount = factory.mount(store)
    filler = fill(small)
    write_without_space(mount)
    mount.umount()
    assert not any(word in store.log() for word in ("read-only", "error", "RocksDB"))
    all_refuse(store, mount.path)
    mount.mount("ro")
    check_written(mount.path)
    mount.umount()
    filler.unlink()
    mount.mount("")
    check_written(mount.path)
    mount.fsck()


def test_nothing_that_a_killed_mount_left_is_lost(factory, store, small):
    mount = factory.mount(store)
    filler = fill(small)
    write_without_space(mount)
    file = os.open(mount.path / "file-0", os.O_RDONLY)
    os.fsync(file)
    os.close(file)
    mount.kill9()
    all_refuse(store, mount.path)
    # A check changes nothing and needs no space, and neither does a read-only mount.
    store.fsck(codes=(0, 1))
    mount.mount("ro")
    check_written(mount.path)
    mount.umount()
    filler.unlink()
    assert "rebuilding the index" in weightfs("mount", store.directory, mount.path).err
    check_written(mount.path)
    mount.options = ""
    mount.fsck()


def all_refuse(store, point):
    for words, code in ((["mount", store.directory, point], 1),
                        (["verify", "--catalog", "--repair", store.directory], 8)):
        line = weightfs(*words, codes=(code,), limit=LIMIT_S).err.splitlines()[-1]
        assert "full" in line and str(store.directory) in line and "make some space" in line and "-o ro" in line
    assert store.daemons() == []
    assert not (store.directory / "meta.recovering").exists(), "others need the space"


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
