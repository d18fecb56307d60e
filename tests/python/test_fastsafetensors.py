# SPDX-License-Identifier: Apache-2.0
"""The copier of weightfs in fastsafetensors, compared with its own one."""

import contextlib
import errno

import pytest
import torch

from safetensors_files import large_model, model_of_all_types, same, shards
from tensors import flip_on_device
from weightfs._core.handle import the_handle
from weightfs._core.memory import describe

fastsafetensors = pytest.importorskip("fastsafetensors", reason="needs fastsafetensors: scripts/setup installs it")
from fastsafetensors.copier import registry  # noqa: E402
from fastsafetensors.loader import BaseSafeTensorsFileLoader  # noqa: E402
from fastsafetensors.st_types import Device  # noqa: E402

import weightfs.fastsafetensors  # noqa: E402
from weightfs.safetensors import save_file  # noqa: E402

MIB = 1 << 20


@pytest.fixture
def copier(monkeypatch):
    for name in ("_copier_registry", "_copier_class_registry"):
        monkeypatch.setattr(registry, name, getattr(registry, name).copy())
    weightfs.fastsafetensors.register()
    weightfs.fastsafetensors.register("nogds", "gds")


@pytest.fixture
def reads(monkeypatch):
    """Lists the ranges that the handle of the process reads."""
    with the_handle(None) as handle:
        found, read = [], handle.read_async
        monkeypatch.setattr(handle, "read_async", lambda memory, file, offset: found.append(
            (offset, offset + describe(memory).nbytes)) or read(memory, file, offset))
        yield found


def load(paths, **options):
    """Loads whole files by a loader of the package."""
    with fastsafetensors.fastsafe_open([str(path) for path in paths], **options) as opened:
        return {name: opened.get_tensor(name) for name in opened.keys()}


def equal(one, other):
    return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)


def supported():
    """The types that fastsafetensors has."""
    names = {"type.C64", "type.U16", "type.U32", "type.U64", "type.F8_E4M3FNUZ", "type.F8_E5M2FNUZ"}
    return {name: tensor for name, tensor in model_of_all_types().items() if name not in names}


def test_its_loaders_load_what_they_loaded_before(folder, request):
    save_file(supported() | large_model(), folder / "all.safetensors")
    paths = [folder / "all.safetensors", *(folder / f"model-{number}.safetensors" for number in range(3))]
    shards(folder)
    paths[1].unlink()   # its tensors are those of the first file
    expected = load(paths[::2], nogds=True)
    request.getfixturevalue("copier")
    assert equal(load(paths[::2], nogds=True), expected) and equal(load(paths[::2]), expected)
    loader = BaseSafeTensorsFileLoader(None, Device.from_str("cpu"), "weightfs")
    loader.add_filenames({0: [str(path) for path in paths[::2]]})
    loaded = loader.copy_files_to_device()
    assert equal({name: loaded.get_tensor(name) for name in loader.get_keys()}, expected)
    kept = loaded.get_tensor("scalar")
    loaded.close()
    loader.close()
    assert same(kept, expected["scalar"])


def test_only_the_tensors_of_a_filter_are_read(work, copier, reads, weightfs_only):
    tensors = {f"expert.{number}": torch.full((MIB,), float(number)) for number in range(4)}
    save_file(tensors, work / "file.safetensors")
    loader = fastsafetensors.SafeTensorsFileLoader(None, "cpu", nogds=True)
    loader.set_tensor_filter(lambda name: name in ("expert.1", "expert.3"))
    loader.add_filenames({0: [str(work / "file.safetensors")]})
    with contextlib.closing(loader), contextlib.closing(loader.copy_files_to_device()) as loaded:
        for name in ("expert.1", "expert.3"):
            assert same(loaded.get_tensor(name), tensors[name])
    assert [end - begin for begin, end in reads] == [4 * MIB, 4 * MIB]


@pytest.mark.parametrize("limit", [{"max_batch_bytes": 9 * MIB}, {"device_memory_budget": 60 * MIB},
                                   {"max_batch_bytes": 9 * MIB, "use_chunk_budget_as_allocation_size": True}], ids=str)
def test_chunks_of_files_are_read_alone(folder, copier, reads, limit):
    tensors = {f"layer.{number}": torch.full((MIB,), float(number)) for number in range(5)}
    save_file(tensors, folder / "file.safetensors")
    loader = fastsafetensors.ParallelLoader(None, [str(folder / "file.safetensors")], nogds=True,
                                            use_tqdm_on_load=False, **limit)
    assert equal({name: tensor.clone() for name, tensor in loader.iterate_weights()}, tensors)
    loader.close()
    assert sum(end - begin for begin, end in reads) == 20 * MIB
    assert "max_batch_bytes" not in limit or max(end - begin for begin, end in reads) <= 9 * MIB


def test_failures_are_those_of_the_filesystem(factory, copier, weightfs_only):
    mount = factory.mount(factory.store("128M"))
    path = mount.path / "file.safetensors"
    save_file({"a": torch.zeros(MIB), "b": torch.zeros(MIB)}, path)
    other = mount.path / "other.safetensors"
    save_file({"c": torch.ones(MIB)}, other)
    flip_on_device(mount.store, path, 6 * MIB)
    for paths in ([path], [path, other], [other, path]):
        with pytest.raises(OSError) as caught:
            load(paths)
        assert (caught.value.errno, caught.value.filename) == (errno.EIO, str(path))
    assert same(load([other])["c"], torch.ones(MIB))
    loader = fastsafetensors.SafeTensorsFileLoader(None, "cpu")
    loader.add_filenames({0: [str(other)]})
    other.unlink()
    with pytest.raises(FileNotFoundError):
        loader.copy_files_to_device()
    loader.close()
