# SPDX-License-Identifier: Apache-2.0
"""Files whose content a program replaces in place, while another one loads them: nobody gets the bytes of one content
with the layout of another."""

import contextlib

import pytest

import weightfs
import weightfs.safetensors

torch = pytest.importorskip("torch")
import weightfs.torch  # noqa: E402
from test_hot_files import (COUNT, MOUNT_OPTIONS, STORE_SIZE, equal, random_tensors, save,  # noqa: E402, F401
                            save_compressed)
from weightfs._core.streams import DirectReader  # noqa: E402

pytestmark = pytest.mark.usefixtures("weightfs_only")
READS = {"tensor": lambda model: model.get_tensor("a"), "tensors": lambda model: model.get_tensors()["a"],
                 "second": lambda model: model.get_tensor("b"), "part": lambda model: model.get_slice("b")[5:9],
                 "gathered": lambda model: model.get_slice("a")[::1 << 20]}


def save_in_place(path, start):
    tensors = {"a": torch.arange(start, start + COUNT, dtype=torch.int32), "b": torch.full((COUNT,), start).int()}
    weightfs.safetensors.save_file(tensors, path, atomic=False)


def replace_in_place(path, start=3):
    """With a file of the same size, whose tensors have other names and places."""
    tensors = {"b": torch.arange(start, start + COUNT + 1024, dtype=torch.int32),
               "c": torch.full((COUNT - 1024,), start, dtype=torch.int32)}
    weightfs.safetensors.save_file(tensors, path, atomic=False)


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("options", ["cache_memory=256M", "cache_memory=0"])
def test_an_open_file_that_is_replaced_in_place_is_an_error(factory, options, read):
    path = factory.mount(factory.store(STORE_SIZE), options).path / "model.safetensors"
    tensors = save(path)
    with weightfs.safetensors.open(path) as model:
        kept = model.get_tensor("a")
        path.chmod(0o600)
        expected = READS[read](model)
        save_in_place(path, 7)   # the same header
        assert (READS[read](model) != expected).all()
        replace_in_place(path)
        with pytest.raises(weightfs.safetensors.SafetensorError, match="model.safetensors: the file was replaced"):
            READS[read](model)
        assert torch.equal(kept, tensors["a"])
        save_in_place(path, 7)
        assert (READS[read](model) != expected).all()


def test_a_stream_of_a_file_that_is_replaced_in_place_is_an_error(work):
    path = work / "model.safetensors"
    save(path)
    with weightfs.safetensors.stream(path) as stream:
        assert next(stream)[0] == "a"
    with weightfs.safetensors.stream(path) as stream:
        replace_in_place(path)
        with pytest.raises(weightfs.safetensors.SafetensorError, match="the file was replaced"):
            next(stream)


@pytest.mark.parametrize("name", ["a", "b"])
def test_memory_of_another_moment_makes_no_tensors(work, monkeypatch, name):
    """Also if the file has its old header again."""
    path = work / "model.safetensors"
    tensors = save(path)
    real = weightfs.Handle.map

    def map_meanwhile(handle, *arguments, **options):
        monkeypatch.setattr(weightfs.Handle, "map", real)
        replace_in_place(path)
        shared = real(handle, *arguments, **options)
        save_in_place(path, 0)
        return shared

    with weightfs.safetensors.open(path) as model:
        monkeypatch.setattr(weightfs.Handle, "map", map_meanwhile)
        try:
            assert torch.equal(model.get_tensor(name), tensors[name])
        except weightfs.safetensors.SafetensorError as error:
            assert "replaced" in str(error)
        assert torch.equal(model.get_tensor(name), tensors[name])


def test_an_archive_that_is_compressed_in_place_during_a_load_makes_no_other_tensors(work, tmp_path, monkeypatch):
    path, saved = work / "model.pt", random_tensors()
    torch.save(saved, path)
    real = DirectReader.map

    def compress_and_map(stream, *arguments, **options):
        save_compressed(saved, path, tmp_path)
        return real(stream, *arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(DirectReader, "map", compress_and_map)
        with contextlib.suppress(RuntimeError):   # as of torch, because the file has got shorter
            assert equal(weightfs.torch.load(path), saved)
    assert equal(weightfs.torch.load(path), saved)
