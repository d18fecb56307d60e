# SPDX-License-Identifier: Apache-2.0
"""A damaged table of a catalog without a usable replica: the mount serves the files that it does not affect, and
`fsck --repair` salvages everything else."""

import json
import random

import pytest

import store_files
from harness.filesystems import weightfs
from harness.process import Failure
from store_files import data_of

pytestmark = pytest.mark.usefixtures("weightfs_only")

ROOT_OFFSETS = (64 << 10, 576 << 10, 1088 << 10, 1600 << 10)
ROOT_SIZE = 384 << 10
FILES = {f"d{number % 7}/f{number}": data_of(number, number * 199 + 1) for number in range(300)}


@pytest.fixture
def store(factory):
    """An unmounted store with many files, without a replica."""
    mount = factory.mount(factory.store("64M"))
    for name, data in FILES.items():
        (mount.path / name).parent.mkdir(exist_ok=True)
        (mount.path / name).write_bytes(data)
    mount.umount()
    for offset in ROOT_OFFSETS:
        store_files.patch(mount.store.directory / "pool", offset, bytes(ROOT_SIZE))
    return mount


def table_of(mount):
    return max((mount.store.directory / "meta").glob("*.sst"), key=lambda path: path.stat().st_size)


def read(mount):
    """The numbers of files that are whole, cannot be read, are missing, or have other bytes."""
    whole, errors, missing, others = 0, 0, 0, []
    for name, data in FILES.items():
        try:
            if (mount.path / name).read_bytes() == data:
                whole += 1
            else:
                others.append(name)
        except FileNotFoundError:
            missing += 1
        except OSError:
            errors += 1
    return whole, errors, missing, others


@pytest.mark.parametrize("seed", range(6))
def test_one_bit(store, seed):
    table = table_of(store)
    generator = random.Random(seed)
    store_files.flip(table, generator.randrange(table.stat().st_size), 1 << generator.randrange(8))
    store.mount(options="ro")
    whole, errors, missing, others = read(store)
    assert whole + errors == len(FILES) and not others, "damage causes EIO and never other bytes"
    store.umount()
    report = weightfs("verify", "--catalog", store.store.directory, "--repair", codes=None)
    assert report.code in (0, 1, 5), report
    assert errors == 0 or "records were salvaged from the damaged catalog" in report.out
    store.store.fsck()
    store.mount(options="")
    repaired, errors, missing, others = read(store)
    assert repaired + len(others) >= whole and errors == 0
    # Directories that lost their names are in lost+found, and files whose records are lost end with zeros.
    kept = {data.rstrip(b"\0") for path in store.path.rglob("*") if path.is_file() for data in [path.read_bytes()]}
    assert sum(data.rstrip(b"\0") in kept for data in FILES.values()) >= 220
    for name in others:
        assert f"'/{name}'" in report.out, "fsck names every file that lost something"
    (store.path / "new").write_bytes(b"new")
    store.remount()
    assert (store.path / "new").read_bytes() == b"new"
    store.umount()
    store.store.fsck()


def test_a_mount_for_writing_becomes_read_only(store):
    table = table_of(store)
    for offset in range(0, table.stat().st_size, 4096):
        store_files.flip(table, offset)
        try:
            store.mount(options="")
        except Failure as failure:
            assert "reading the catalog failed" in str(failure)
        else:
            if json.loads(weightfs("info", store.path, "--json").out)["read_only"]:
                break
            store.umount()
        store_files.flip(table, offset)
    else:
        pytest.fail("no block of the table has extents")
    assert read(store)[0] > 100
