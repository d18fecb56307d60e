# SPDX-License-Identifier: Apache-2.0
"""What format writes to a new pool, and that no file shows it."""

import json
import os
import re
import shutil

import pytest

import store_files
from harness import needs, process
from harness.filesystems import weightfs
from harness.tree import snapshot

pytestmark = pytest.mark.usefixtures("weightfs_only")

MIB = 1 << 20
HEAD = 2 * MIB   # before the data area; the tail has the same size


def is_filled_with_data(device, size):
    """Asserts that both ends of the device are as without data, and returns whether there is data between them."""
    assert not store_files.read_at(device, size - HEAD, HEAD).strip(b"\0")
    blocks = {store_files.read_at(device, at, 4096) for at in range(HEAD, size - HEAD, MIB)}
    assert b"\0" * 4096 in blocks or len(blocks) == len(range(HEAD, size - HEAD, MIB))
    return b"\0" * 4096 not in blocks


@pytest.mark.parametrize("fill", ["zeros", "data"])
def test_a_pool_is_filled_as_requested(factory, fill):
    store = factory.directory() / "store"
    out = weightfs("format", store, "--size", "32M", "--fill", fill).out
    assert re.search(rf"^Filled with {fill} in \d+\.\d s, so that the first .* later ones$", out, re.MULTILINE), out
    assert is_filled_with_data(store / "pool", 32 * MIB) == (fill == "data")
    described = json.loads(weightfs("format", store, "--size", "32M", "--fill", fill, "--force", "--json").out)
    assert [device["fill"] for device in described["devices"]] == [fill] and described["fill_seconds"] > 0
    assert "fill" not in (store / "store.json").read_text()


def test_a_small_pool_is_not_probed(factory):
    store = factory.directory() / "store"
    device, = json.loads(weightfs("format", store, "--size", "32M", "--json").out)["devices"]
    assert device["fill"] == "zeros" and "first_write_slowdown" not in device


@pytest.mark.limit(360)
@pytest.mark.parametrize("sparse", [True, False], ids=["sparse", "probed"])
def test_the_report_says_what_a_large_pool_was_filled_with(factory, sparse):
    directory = factory.directory()
    if shutil.disk_usage(directory).free < 2 << 30:
        pytest.skip("needs 2 GiB of space")
    out = weightfs("format", directory / "store", "--size", "1G", *["--sparse"] * sparse, limit=300).out
    shutil.rmtree(directory / "store")
    expected = "Not filled: .*" if sparse else r"Filled with (zeros|data) in .* times as long as a later one"
    assert re.search(f"^{expected}$", out, re.MULTILINE), out
    assert ("Filling the pool once (1.00 GiB)" in out and "--sparse" in out) == (not sparse)


def test_files_do_not_show_the_data_of_the_pool(factory):
    """Holes, allocated space, the ends of last blocks and truncated files read as zeros, and a catalog that is lost is
    found again."""
    mount = factory.mount(factory.store("64M", fill="data"))
    descriptor = os.open(mount.path / "allocated", os.O_RDWR | os.O_CREAT)
    os.posix_fallocate(descriptor, 0, 8 * MIB)
    os.pwrite(descriptor, b"x", 3 * MIB)
    os.close(descriptor)
    (mount.path / "short").write_bytes(b"x" * 100)
    os.truncate(mount.path / "short", 10000)
    (mount.path / "hole").touch()
    os.truncate(mount.path / "hole", MIB)
    mount.remount()
    allocated = bytearray(8 * MIB)
    allocated[3 * MIB] = ord("x")
    assert (mount.path / "allocated").read_bytes() == allocated
    assert (mount.path / "short").read_bytes() == b"x" * 100 + bytes(9900)
    assert (mount.path / "hole").read_bytes() == bytes(MIB)
    content = snapshot(mount.path, times=True)
    mount.fsck()
    weightfs("verify", mount.store.directory)
    shutil.rmtree(mount.store.directory / "meta")
    mount.store.fsck()
    weightfs("verify", "--catalog", "--repair", mount.store.directory, codes=(1,))
    mount.mount()
    assert snapshot(mount.path, times=True) == content
    mount.fsck()


@needs.loop_devices()
def test_a_block_device_is_filled_only_on_request(factory):
    directory = factory.directory()
    with open(directory / "image", "wb") as stream:
        stream.truncate(32 * MIB)
    device = process.run(["losetup", "--find", "--show", directory / "image"]).out.strip()
    try:
        out = weightfs("format", directory / "store", "--device", device).out
        assert "Not filled" in out and not is_filled_with_data(device, 32 * MIB)
        out = weightfs("format", directory / "store", "--device", device, "--fill", "data", "--force").out
        assert "Filled with data" in out and is_filled_with_data(device, 32 * MIB)
        weightfs("verify", "--catalog", directory / "store")
    finally:
        process.run(["losetup", "--detach", device])


def test_a_device_that_the_description_cannot_name_is_refused(tmp_path):
    folder = tmp_path / os.fsdecode(b"d\xe9")
    folder.mkdir()
    for name in ("f", "g"):
        (folder / name).write_bytes(b"\1" * (32 << 20))
    for words in ((tmp_path / "store", "--device", folder / "f"), ("--device", folder / "f", "--device", folder / "g")):
        assert "not UTF-8" in weightfs("format", *words, "--sparse", "--force", codes=(1,)).err
    assert (folder / "f").read_bytes() == b"\1" * (32 << 20) and not (tmp_path / "store").exists()
