# SPDX-License-Identifier: Apache-2.0
"""Reads of what is in the memory that the mount shares between programs. They load nothing into it."""

import os

import pytest

import weightfs
import weightfs.safetensors

torch = pytest.importorskip("torch")
from torch.distributed import checkpoint as distributed  # noqa: E402

import weightfs.dcp  # noqa: E402
import weightfs.hdf5  # noqa: E402
import weightfs.torch  # noqa: E402
from test_hot_files import COUNT, MOUNT_OPTIONS, SIZE, STORE_SIZE, equal, hot, info, save  # noqa: E402, F401
from weightfs import checkpoint  # noqa: E402

pytestmark = pytest.mark.usefixtures("weightfs_only")


def heat(path):
    """Loads a file, or those of a directory, into the memory of the mount. Returns False if it has no room."""
    with weightfs.Handle() as handle:
        for file in [path] if path.is_file() else [found for found in path.rglob("*") if found.is_file()]:
            with open(file, "rb") as opened:
                shared = handle.map(opened.fileno(), 0, os.fstat(opened.fileno()).st_size)
                if shared is None:
                    return False
                os.close(shared)
    return True


def lazy_load(path):
    if path.suffix == ".safetensors":
        return dict(weightfs.safetensors.stream(path))
    return weightfs.torch.load(path, mmap=True)


@pytest.mark.parametrize("name", ["model.safetensors", "model.pt"])
def test_streams_and_maps_of_torch_use_what_is_hot_and_load_nothing(work, name):
    path = work / name
    tensors = save(path)
    before = hot(path.parent)["loaded"]
    assert equal(lazy_load(path), tensors)
    assert hot(path.parent)["loaded"] == before
    assert heat(path)
    before = info(path.parent)
    loaded = lazy_load(path)
    after = info(path.parent)
    assert equal(loaded, tensors)
    assert after["hot"]["mapped"] >= before["hot"]["mapped"] + SIZE
    assert after["statistics"]["device_read_bytes"] == before["statistics"]["device_read_bytes"]
    loaded["a"].fill_(7)
    assert equal(lazy_load(path), tensors)


def empty_like(tensors):
    return {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}


def raw(path):
    tensors = {"all": torch.arange(COUNT, dtype=torch.int32)[:-1]}   # its last block is not full
    with weightfs.Handle() as handle:
        handle.write_from(tensors["all"], path)
    return tensors


def read_into(path):
    out = torch.zeros(COUNT - 1, dtype=torch.int32)
    with weightfs.Handle() as handle:
        handle.read_into(out, path)
    return {"all": out}


def rows(path):
    out = torch.zeros(COUNT - 1, dtype=torch.int32)
    with weightfs.reader(path) as reader:
        reader.rows(torch.arange(3), out, row_bytes=4 * (COUNT - 1) // 3)
    return {"all": out}


def save_step(path):
    tensors = save(path.with_suffix(".pt"))
    with checkpoint.Manager(path) as manager:
        manager.save(1, tensors, wait=True)
    return tensors


def restore(path):
    state = empty_like(save(path.with_suffix(".pt"), 9))
    with checkpoint.Manager(path) as manager:
        manager.restore(state)
    return state


def save_distributed(path):
    tensors = save(path.with_suffix(".pt"))
    distributed.save(tensors, storage_writer=weightfs.dcp.StorageWriter(path))
    return tensors


def load_distributed(path):
    state = empty_like(save(path.with_suffix(".pt"), 9))
    distributed.load(state, storage_reader=weightfs.dcp.StorageReader(path))
    return state


def save_hdf5(path):
    pytest.importorskip("h5py")
    tensors = {"a": torch.arange(2 * COUNT, dtype=torch.int32)}
    with weightfs.hdf5.File(path, "w") as file:
        file["a"] = tensors["a"].numpy()
    return tensors


def load_hdf5(path):
    with weightfs.hdf5.File(path, "r") as file:
        return {"a": torch.from_numpy(file["a"][:])}


def load_private(path):
    return weightfs.torch.load(path, mmap=False)


READS = {"read": (raw, read_into), "rows": (raw, rows), "torch": (save, load_private), "restore": (save_step, restore),
         "dcp": (save_distributed, load_distributed), "hdf5": (save_hdf5, load_hdf5)}


@pytest.mark.parametrize("kind", READS)
def test_reads_of_what_is_hot_use_no_device(work, kind):
    write, read = READS[kind]
    path = work / kind
    tensors = write(path)
    before = hot(work)["loaded"]
    assert equal(read(path), tensors)
    assert hot(work)["loaded"] == before, "what is not hot does not become it"
    assert heat(path)
    before = info(work)
    assert equal(read(path), tensors)
    after = info(work)
    total = sum(tensor.nbytes for tensor in tensors.values())
    assert after["hot"]["mapped"] >= before["hot"]["mapped"] + total
    assert after["statistics"]["device_read_bytes"] - before["statistics"]["device_read_bytes"] < total // 8


def test_a_reader_of_a_hot_file_returns_one_state(work):
    path = work / "file"
    tensors = raw(path)
    assert heat(path)
    out = torch.zeros(1000, dtype=torch.int32)
    with weightfs.reader(path) as reader:
        with open(path, "r+b") as file:
            file.write(b"\xff" * 4000)
        reader.read(0, out)
        assert torch.equal(out, tensors["all"][:1000])
        reader.refresh()
        reader.read(0, out)
        assert bool((out == -1).all())


def test_readers_keep_memory_that_counts(factory):
    mount = factory.mount(factory.store(STORE_SIZE), "cache_memory=40M")
    paths = [mount.path / str(number) for number in range(3)]
    for path in paths:
        raw(path)
    assert heat(paths[0]) and heat(paths[1])
    with weightfs.reader(paths[0]), weightfs.reader(paths[1]):
        assert not heat(paths[2]) and hot(mount.path)["used"] <= 40 << 20
    assert heat(paths[2])
