# SPDX-License-Identifier: Apache-2.0
"""NumPy: save, load, archives and memory maps."""

import numpy as np
import pytest

SHAPES = [(), (1,), (1000,), (257, 1031), (64, 128, 257)]


def values(shape, dtype="float32", seed=7):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_save_and_load(mount, work, shape):
    expected = values(shape)
    np.save(work / "array.npy", expected)
    assert np.array_equal(np.load(work / "array.npy"), expected)
    mount.remount()
    assert np.array_equal(np.load(work / "array.npy"), expected)


def test_saved_file_equals_the_one_on_the_local_disk(mount, work, local):
    expected = values((300, 1000))
    for place in (work, local):
        np.save(place / "array.npy", expected)
        np.savez(place / "archive.npz", first=expected, second=expected[:7])
    mount.remount()
    assert (work / "array.npy").read_bytes() == (local / "array.npy").read_bytes()
    with np.load(work / "archive.npz") as archive, np.load(local / "archive.npz") as other:
        assert sorted(archive.files) == sorted(other.files)
        assert all(np.array_equal(archive[name], other[name]) for name in other.files)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed], ids=["savez", "savez_compressed"])
def test_archives_which_seek_back_to_patch_headers(mount, work, save):
    arrays = {f"layer{index}": values((index * 37 + 1, 501), seed=index) for index in range(12)}
    save(work / "archive.npz", **arrays)
    mount.remount()
    with np.load(work / "archive.npz") as archive:
        assert sorted(archive.files) == sorted(arrays)
        assert all(np.array_equal(archive[name], array) for name, array in arrays.items())


def test_load_with_a_memory_map(mount, work):
    expected = values((1000, 999))
    np.save(work / "array.npy", expected)
    mount.remount()
    mapped = np.load(work / "array.npy", mmap_mode="r")
    assert np.array_equal(mapped, expected)
    del mapped


def test_memory_map_made_anew_extends_the_file_sparsely(mount, work):
    path = work / "map.bin"
    mapped = np.memmap(path, dtype="int64", mode="w+", shape=(1 << 20,))
    mapped[1000:2000] = np.arange(1000)
    mapped[-1] = -5
    mapped.flush()
    del mapped
    mount.remount()
    assert path.stat().st_size == 8 << 20
    found = np.fromfile(path, dtype="int64")
    expected = np.zeros(1 << 20, dtype="int64")
    expected[1000:2000] = np.arange(1000)
    expected[-1] = -5
    assert np.array_equal(found, expected)


def test_memory_map_changes_an_existing_file_in_place(mount, work):
    path = work / "map.bin"
    expected = values((512, 513))
    expected.tofile(path)
    mapped = np.memmap(path, dtype="float32", mode="r+", shape=(512, 513))
    mapped[100:200, 7] = 42
    expected[100:200, 7] = 42
    mapped.flush()
    assert np.array_equal(np.fromfile(path, dtype="float32").reshape(512, 513), expected)
    del mapped
    mount.remount()
    assert np.array_equal(np.memmap(path, dtype="float32", mode="r", shape=(512, 513)), expected)


def test_copy_on_write_memory_map_leaves_the_file_alone(mount, work):
    path = work / "map.bin"
    expected = values((4096,))
    expected.tofile(path)
    mapped = np.memmap(path, dtype="float32", mode="c")
    mapped[:] = 0
    del mapped
    mount.remount()
    assert np.array_equal(np.fromfile(path, dtype="float32"), expected)


def test_memory_map_not_flushed_is_kept_by_an_unmount(mount, work):
    path = work / "map.bin"
    mapped = np.memmap(path, dtype="uint8", mode="w+", shape=(3 << 20,))
    mapped[:] = np.arange(3 << 20, dtype="uint8")
    del mapped
    mount.remount()
    assert np.array_equal(np.fromfile(path, dtype="uint8"), np.arange(3 << 20, dtype="uint8"))
