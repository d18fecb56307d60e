# SPDX-License-Identifier: Apache-2.0
"""Loaded tensors own their memory: each has a storage of its own, which is freed with it."""

import copy
import io
import os
import random
import threading

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_model

import weightfs.dcp
import weightfs.torch
from safetensors_files import file_of, large_model, model_of_all_types, same
from tensors import random_tensor
from weightfs import safetensors
from weightfs.safetensors._memory import _DeviceMemory

MIB = 1 << 20


def load_slices(path):
    with safetensors.open(path) as model:
        return {name: model.get_slice(name)[...] for name in model.keys()}


def load_rows(path):
    """The rows behind the first one, and both halves of the columns."""
    with safetensors.open(path) as model:
        parts = [model.get_slice(name) for name in model.keys()]
        parts = [part for part in parts if len(part.shape) == 2 and min(part.shape) > 1]
        return {at: found for at, part in enumerate(parts)
                for found in (part[1:], part[:, :part.shape[1] // 2], part[..., part.shape[1] // 2:])}


def load_each(path):
    with safetensors.open(path) as model:
        return {name: model.get_tensor(name) for name in model.keys()}


def load_all(path):
    with safetensors.open(path) as model:
        return model.get_tensors()


LOADS = {"load_file": safetensors.load_file, "load": lambda path: safetensors.load(path.read_bytes()),
         "get_tensor": load_each, "get_tensors": load_all, "stream": lambda path: dict(safetensors.stream(path)),
         "small stream": lambda path: dict(safetensors.stream(path, memory=100)), "slices": load_slices,
         "rows": load_rows}


def assert_own_storage(tensors):
    for name, tensor in tensors.items():
        storage = tensor.untyped_storage()
        assert (storage.nbytes(), tensor.storage_offset()) == (tensor.nbytes, 0), name
    addresses = [tensor.untyped_storage().data_ptr() for tensor in tensors.values() if tensor.nbytes]
    assert len(set(addresses)) == len(addresses)


@pytest.mark.parametrize("load", LOADS.values(), ids=LOADS)
@pytest.mark.parametrize("make", [model_of_all_types, large_model])
def test_each_tensor_has_a_storage_of_its_own_size(folder, load, make):
    safetensors.save_file(make(), folder / "file")
    tensors = load(folder / "file")
    assert len(tensors) > 1
    assert_own_storage(tensors)


def test_misaligned_tensors_have_storages_of_their_own(local):
    header = {"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
              "b": {"dtype": "F64", "shape": [700_000], "data_offsets": [1, 5_600_001]}}
    data = random_tensor(5_600_001)
    (local / "file").write_bytes(file_of(header, data.numpy().tobytes()))
    for load in LOADS.values():
        tensors = load(local / "file")
        assert_own_storage(tensors)
        assert not tensors or same(tensors["b"].view(torch.uint8), data[1:])


def test_storages_of_archives_and_distributed_checkpoints_are_their_own(folder):
    tensors = large_model()
    weightfs.torch.save(tensors, folder / "archive")
    assert_own_storage(weightfs.torch.load(folder / "archive"))
    dcp.save(tensors, storage_writer=weightfs.dcp.StorageWriter(folder / "checkpoint"), no_dist=True)
    loaded = {name: torch.empty_like(tensor) for name, tensor in tensors.items()}
    dcp.load(loaded, storage_reader=weightfs.dcp.StorageReader(folder / "checkpoint"), no_dist=True)
    assert_own_storage(loaded)
    assert all(same(loaded[name], tensor) for name, tensor in tensors.items())


@pytest.mark.parametrize("load", [LOADS["load_file"], LOADS["stream"]], ids=["load_file", "stream"])
def test_one_tensor_of_many_is_saved_and_copied_alone(local, load):
    safetensors.save_file({f"{at}": torch.ones(MIB // 4) for at in range(16)}, local / "file")
    tensors = load(local / "file")
    saved = io.BytesIO()
    torch.save(tensors["3"], saved)
    assert saved.getbuffer().nbytes < MIB + 10_000
    assert copy.deepcopy(tensors["3"]).untyped_storage().nbytes() == MIB


def test_a_loaded_model_can_be_saved_as_one_with_tied_weights(local):
    safetensors.save_file({"a": torch.ones(30, 30)}, local / "file")
    for load in (LOADS["load_file"], LOADS["get_tensor"]):
        model = torch.nn.ParameterDict({"a": torch.nn.Parameter(load(local / "file")["a"])})
        model["tied"] = model["a"]
        for save in (save_model, safetensors.save_model):
            save(model, local / "tied")


def resident():
    with open("/proc/self/statm", "rb") as sizes:
        return int(sizes.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("load", [LOADS["load_file"], LOADS["load"], LOADS["get_tensors"], LOADS["stream"]],
                         ids=["load_file", "load", "get_tensors", "stream"])
@pytest.mark.parametrize("count, size", [(16, 4 * MIB), (64 << 10, 1 << 10)], ids=["large", "small"])
def test_a_deleted_tensor_gives_its_memory_back(local, load, count, size):
    safetensors.save_file({f"{at}": torch.ones(size, dtype=torch.uint8) for at in range(count)}, local / "file")
    kept = load(local / "file")
    before = resident()
    name = f"{count // 2}"
    kept = kept[name]
    assert before - resident() > 59 * MIB
    assert kept.nbytes == size and (kept == 1).all()


def test_deleting_tensors_in_any_order_leaves_the_others_as_they_are(local):
    seed = random.randrange(1 << 32)
    generator = random.Random(seed)
    tensors = {f"{at}": random_tensor(generator.choice([1, 7, 600, 4096, 5000, 300_000]), seed=at) for at in range(300)}
    safetensors.save_file(tensors, local / "file")
    loaded = safetensors.load_file(local / "file")

    def delete(names):
        for name in names:
            del loaded[name]

    names = generator.sample(sorted(tensors), 290)
    threads = [threading.Thread(target=delete, args=(names[at::3],)) for at in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(loaded) == 10 and all(same(tensor, tensors[name]) for name, tensor in loaded.items()), seed


def test_changing_a_tensor_leaves_its_neighbors_as_they_are(local):
    safetensors.save_file({"a": torch.zeros(1000), "b": torch.zeros(1000)}, local / "file")
    loaded = safetensors.load_file(local / "file")
    loaded["a"].fill_(5)
    assert not loaded["b"].any() and (loaded["a"] == 5).all()


def test_tensors_of_device_memory_have_storages_of_their_own():
    memory = _DeviceMemory(100, torch.device("cpu"))   # that of a GPU behaves alike
    memory.target.copy_(random_tensor(100))
    header = {"a": {"dtype": "U8", "shape": [8], "data_offsets": [1000, 1008]},
              "b": {"dtype": "F32", "shape": [2, 3], "data_offsets": [1008, 1032]},
              "odd": {"dtype": "BF16", "shape": [4], "data_offsets": [1033, 1041]},
              "empty": {"dtype": "F64", "shape": [0, 4], "data_offsets": [1041, 1041]}}
    tensors = memory.tensors(header, base=1000)
    assert_own_storage(tensors)
    for name, facts in header.items():
        begin, end = (offset - 1000 for offset in facts["data_offsets"])
        assert torch.equal(tensors[name].view(torch.uint8).reshape(-1), memory.target[begin:end])
        assert list(tensors[name].shape) == facts["shape"]
    whole = memory.tensor({"dtype": "F32", "shape": [25], "data_offsets": [0, 100]})
    assert whole.data_ptr() == memory.target.data_ptr()   # no copy
