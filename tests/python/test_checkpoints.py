"""weightfs.torch and weightfs.safetensors against the libraries whose files they write."""

import os

import pytest
import safetensors.torch
import torch

import weightfs.safetensors
import weightfs.torch
from tensors import random_tensor

STORE_SIZE = "512M"


def checkpoint():
    weights = torch.randn(1000, 1500)
    return {"large": weights, "view": weights[5:], "transposed": weights.t(), "tied": weights,
            "small": [torch.arange(i) for i in range(300)], "half": torch.randn(700_001).bfloat16(),
            "step": 17, "name": "ünïcödé", "empty": torch.empty(0), "scalar": torch.tensor(2.5),
            "optimizer": {"lr": 0.1, "state": {i: {"m": torch.randn(200, 300)} for i in range(20)}}}


def equal(a, b):
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b) and a.dtype == b.dtype
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(equal, a, b))
    return a == b


def test_torch_save_writes_the_bytes_of_torch(folder):
    saved = checkpoint()
    # torch puts the file's name into the archive, and another one for streams.
    with open(folder / "theirs", "wb") as stream:
        torch.save(saved, stream)
    weightfs.torch.save(saved, folder / "ours")
    assert (folder / "ours").read_bytes() == (folder / "theirs").read_bytes()


@pytest.mark.parametrize("options", [{}, {"durable": True, "atomic": True}, {"storage_alignment": 4096},
                                     {"crc32": False},
                                     {"_use_new_zipfile_serialization": False}], ids=str)
def test_torch_and_weightfs_load_each_others_files(folder, options):
    saved = checkpoint()
    weightfs.torch.save(random_tensor(30_000_000), folder / "file")   # longer: nothing of it may stay
    weightfs.torch.save(saved, folder / "file", **options)
    assert equal(torch.load(folder / "file"), saved)
    assert equal(weightfs.torch.load(folder / "file"), saved)
    loaded = weightfs.torch.load(folder / "file", weights_only=False, map_location="cpu")
    assert equal(loaded, saved)
    if options.get("_use_new_zipfile_serialization", True):
        assert equal(weightfs.torch.load(folder / "file", mmap=True), saved)
    assert os.listdir(folder) == ["file"]


def test_torch_settings_are_as_before(local):
    from torch.utils.serialization import config
    before = (torch.serialization.get_crc32_options(), config.save.storage_alignment)
    weightfs.torch.save(checkpoint(), local / "file", crc32=False, storage_alignment=4096)
    assert (torch.serialization.get_crc32_options(), config.save.storage_alignment) == before


def test_large_storages_go_straight_between_tensor_and_file(local):
    tensor = torch.randn(4 << 20)
    with weightfs.aio_handle() as handle:
        ways = []
        write, read = handle.write_from, handle.read_into
        handle.write_from = lambda buffer, *rest: ways.append(memoryview(buffer).nbytes) or write(buffer, *rest)
        handle.read_into = lambda buffer, *rest: ways.append(memoryview(buffer).nbytes) or read(buffer, *rest)
        weightfs.torch.save(tensor, local / "file", handle=handle)
        assert ways == [tensor.nbytes]
        assert torch.equal(weightfs.torch.load(local / "file", handle=handle), tensor)
        assert sum(ways) == 2 * tensor.nbytes


def test_a_failed_atomic_save_leaves_the_old_file(local):
    class Unpicklable:
        def __reduce__(self):
            raise RuntimeError("no")

    weightfs.torch.save([1], local / "file")
    with pytest.raises(RuntimeError, match="no"):
        weightfs.torch.save([torch.randn(1 << 20), Unpicklable()], local / "file", atomic=True)
    assert torch.load(local / "file") == [1]
    assert os.listdir(local) == ["file"]


def test_a_full_device_fails_the_save(work):
    with pytest.raises((OSError, RuntimeError)):
        weightfs.torch.save(torch.zeros(600 << 20, dtype=torch.uint8), work / "file", crc32=False)


DTYPES = [torch.bool, torch.uint8, torch.int8, torch.float8_e5m2, torch.float8_e4m3fn, torch.int16, torch.float16,
          torch.bfloat16, torch.int32, torch.float32, torch.float64, torch.int64, torch.complex64]


def model():
    tensors = {f"layer.{i}.{str(dtype)[6:]}": random_tensor(1000 + 37 * i, torch.uint8, i).to(torch.float32).to(dtype)
               for i, dtype in enumerate(DTYPES)}
    return tensors | {"large": torch.randn(3000, 1001), "ünï": torch.randn(3, 4, 5), "empty": torch.empty(0, 7),
                      "scalar": torch.tensor(1.5), "a\"quote": torch.ones(3)}


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}])
def test_safetensors_are_the_bytes_of_the_library(folder, metadata):
    tensors = model()
    safetensors.torch.save_file(tensors, folder / "theirs", metadata)
    weightfs.safetensors.save_file(tensors, folder / "ours", metadata)
    assert (folder / "ours").read_bytes() == (folder / "theirs").read_bytes()


def test_safetensors_are_loaded_as_by_the_library(folder):
    tensors = model()
    weightfs.safetensors.save_file(tensors, folder / "file", {"format": "pt"}, durable=True, atomic=True)
    theirs, ours = safetensors.torch.load_file(folder / "file"), weightfs.safetensors.load_file(folder / "file")
    assert theirs.keys() == ours.keys() == tensors.keys()
    for name, tensor in tensors.items():
        for loaded in (theirs[name], ours[name]):
            assert loaded.dtype == tensor.dtype and loaded.shape == tensor.shape
            assert torch.equal(loaded.contiguous().view(-1).view(torch.uint8) if loaded.numel() else loaded,
                               tensor.contiguous().view(-1).view(torch.uint8) if tensor.numel() else tensor)


def test_safetensors_are_views_of_the_memory_that_a_gpu_would_have():
    memory = random_tensor(100)
    view = weightfs.safetensors._view(memory, {"dtype": "F32", "shape": [2, 3], "data_offsets": [8, 32]})
    assert torch.equal(view.view(torch.uint8).view(-1), memory[8:32]) and view.shape == (2, 3)
    assert view.data_ptr() == memory.data_ptr() + 8
    odd = weightfs.safetensors._view(memory, {"dtype": "BF16", "shape": [4], "data_offsets": [33, 41]})
    assert torch.equal(odd.view(torch.uint8), memory[33:41])
    assert weightfs.safetensors._view(memory, {"dtype": "F64", "shape": [0, 4], "data_offsets": [3, 3]}).shape == (0, 4)


def test_safetensors_of_strided_tensors(folder):
    matrix = torch.randn(1200, 1100)
    weightfs.safetensors.save_file({"t": matrix.t(), "rows": matrix[::2], "parameter": torch.nn.Parameter(matrix)},
                                   folder / "file")
    loaded = safetensors.torch.load_file(folder / "file")
    assert torch.equal(loaded["t"], matrix.t())
    assert torch.equal(loaded["rows"], matrix[::2])


def test_damaged_safetensors_are_refused(local):
    weightfs.safetensors.save_file({"a": torch.arange(100.0)}, local / "file")
    good = (local / "file").read_bytes()
    damages = [b"", good[:5], good[:-1], good + b"x", b"\xff" * 8 + good[8:], good.replace(b'"F32"', b'"F99"'),
               good.replace(b"[100]", b"[101]"), good.replace(b"[0,400]", b"[4,404]"), good.replace(b"{", b"[", 1),
               good.replace(b"[100]", b"[-10]")]
    for damage in damages:
        (local / "bad").write_bytes(damage)
        with pytest.raises(ValueError, match="bad"):
            weightfs.safetensors.load_file(local / "bad")
    with pytest.raises(FileNotFoundError):
        weightfs.safetensors.load_file(local / "missing")
    for wrong in ({"a": 5}, {5: torch.ones(1)}):
        with pytest.raises(TypeError):
            weightfs.safetensors.save_file(wrong, local / "wrong")
    assert not (local / "wrong").exists()
