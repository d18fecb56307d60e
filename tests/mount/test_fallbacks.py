# SPDX-License-Identifier: Apache-2.0
"""The fallbacks for missing kernel features, simulated on one machine by `-o without=FEATURE`."""

import mmap
import os

import pytest

import random_runs
from harness import process

pytestmark = pytest.mark.usefixtures("weightfs_only")
FEATURES = ["direct_io_allow_mmap", "parallel_direct_writes", "max_pages", "max_pages_limit", "readdirplus",
            "posix_acl", "async_dio", "atomic_o_trunc", "cache_symlinks", "read_ahead", "auto_inval_data",
            "parallel_dirops", "big_writes", "dont_mask", "async_read", "passthrough", "writeback_cache",
            "over_io_uring"]
TOGETHER = ["direct_io_allow_mmap", "parallel_direct_writes", "max_pages", "readdirplus", "async_dio", "posix_acl",
            "atomic_o_trunc", "cache_symlinks", "parallel_dirops"]


@pytest.fixture
def store(factory):
    return factory.store("128M")


def smoke(mount, local, seed, ops):
    """Tests mappings, the usual kinds of locks, a copy, and random operations on one file. Returns what those
    print."""
    path = mount.path / "file"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    os.ftruncate(descriptor, 2 << 20)
    with mmap.mmap(descriptor, 2 << 20) as mapping:
        mapping[:] = b"\x11" * (2 << 20)
        mapping.flush()
        assert os.pread(descriptor, 100, 12345) == b"\x11" * 100
        os.pwrite(descriptor, b"\x22" * 5000, 12345)
        assert mapping[12345:12350] == b"\x22" * 5
    os.close(descriptor)
    process.run(["cp", "-a", path, mount.path / "copy"])
    for index in range(50):
        (mount.path / f"name-{index}").symlink_to(f"file-{index}")
    mount.remount()
    data = path.read_bytes()
    assert data == (mount.path / "copy").read_bytes() and data[12345:17345] == b"\x22" * 5000
    assert len(data) == 2 << 20 and len(os.listdir(mount.path)) == 52
    (mount.path / "random").mkdir()
    words = [mount.path / "random", "--seed", seed, "--ops", ops, "--remount", mount.remount_command()]
    out = random_runs.run_program("random_file.py", words, local / f"without-{seed}.ops", limit=120)
    mount.fsck()
    return out


@pytest.mark.parametrize("feature", FEATURES)
def test_works_without(factory, store, local, feature):
    smoke(factory.mount(store, f"without={feature}"), local, seed=len(feature), ops=150)


def test_works_without_all_of_them(factory, store, local, pytestconfig):
    options = ",".join(f"without={feature}" for feature in TOGETHER)
    smoke(factory.mount(store, options), local, seed=77, ops=random_runs.operations(pytestconfig, default=800))


@pytest.mark.parametrize("options", ["threads=1", "threads=8", "commit=1", "sync_on_close", "noatime", "memory=112M",
                                     "cache=never", "cache_memory=0"])
def test_works_with(factory, store, local, options):
    out = smoke(factory.mount(store, options), local, seed=len(options), ops=150)
    assert options != "cache_memory=0" or out.startswith("0 maps")
