# SPDX-License-Identifier: Apache-2.0
"""Assumptions of programs that change only their import, and calls that are rejected rather than half executed."""

import errno
import gc
import io
import os
import pickle
import threading

import pytest
import safetensors.torch
import torch

import weightfs
import weightfs.safetensors
import weightfs.torch
from harness import needs
from tensors import content, random_tensor

STATE = {"weight": torch.arange(300_000, dtype=torch.float32), "bias": torch.ones(3)}


def equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@needs.torch("2.7")   # torch.utils.serialization
def test_torch_is_called_as_torch_is(local):
    path = local / "model.pt"
    weightfs.torch.save(obj=STATE, f=path)
    assert equal(weightfs.torch.load(path, "cpu"), STATE)
    assert equal(weightfs.torch.load(f=str(path), map_location="cpu", weights_only=True), STATE)
    assert weightfs.torch.load(path, "meta")["weight"].is_meta
    assert equal(weightfs.torch.load(os.fsencode(path), mmap=True), STATE)
    with torch.utils.serialization.config.patch({"load.mmap": True}):
        assert equal(weightfs.torch.load(path), STATE)
        assert equal(weightfs.torch.load(path, mmap=False), STATE)
    weightfs.torch.save(STATE, path, pickle, 3)
    assert equal(weightfs.torch.load(path, None, pickle, weights_only=False), STATE)
    stream = io.BytesIO()
    weightfs.torch.save(STATE, stream)
    stream.seek(0)
    assert equal(weightfs.torch.load(stream), STATE)
    with open(path, "rb") as stream:
        assert equal(weightfs.torch.load(stream), STATE)


@pytest.mark.parametrize("wrong", [5, None, ["file"], object()], ids=["number", "none", "list", "object"])
def test_neither_a_path_nor_a_stream_is_the_error_of_torch(wrong):
    for ours, theirs in ((lambda: weightfs.torch.save(STATE, wrong), lambda: torch.save(STATE, wrong)),
                         (lambda: weightfs.torch.load(wrong), lambda: torch.load(wrong))):
        with pytest.raises(AttributeError) as expected:
            theirs()
        with pytest.raises(AttributeError) as caught:
            ours()
        assert str(caught.value) == str(expected.value)


def test_a_path_that_can_also_write_is_a_path(local, handle):
    class Path(type(local)):
        """As py.path.local, which pytest's tmpdir gives."""

        def write(self, data):
            raise NotImplementedError

        read = write

    handle.close()
    with pytest.raises(ValueError, match="closed"):   # the handle writes, not torch
        weightfs.torch.save(STATE, Path(local / "file"), handle=handle)
    weightfs.torch.save(STATE, Path(local / "file"))
    assert equal(weightfs.torch.load(Path(local / "file")), STATE)


@pytest.mark.parametrize("atomic", [True, False])
def test_data_may_be_omitted(local, atomic):
    stream = io.BytesIO()
    with torch.serialization.skip_data():
        torch.save(STATE, stream)
        weightfs.torch.save(STATE, local / "file", atomic=atomic)
    assert (local / "file").read_bytes() == stream.getvalue()


def test_safetensors_is_called_as_safetensors_is(local):
    path = local / "model.safetensors"
    weightfs.safetensors.save_file(STATE, filename=path)
    assert equal(weightfs.safetensors.load_file(path, "cpu"), STATE)
    assert equal(weightfs.safetensors.load_file(filename=path, device=torch.device("cpu")), STATE)


def test_every_float_of_eight_bits_is_saved_as_by_the_library(local):
    kinds = [kind for kind in (getattr(torch, name) for name in dir(torch) if name.startswith("float8_"))]
    tensors = {str(kind): torch.randn(100).to(kind) for kind in kinds} | {"bytes": torch.ones(3, dtype=torch.uint8)}
    assert len(kinds) >= 4
    weightfs.safetensors.save_file(tensors, local / "ours")
    safetensors.torch.save_file(tensors, local / "theirs")
    assert (local / "ours").read_bytes() == (local / "theirs").read_bytes()
    loaded = weightfs.safetensors.load_file(local / "theirs")
    assert {name: content(tensor.view(torch.uint8)) for name, tensor in loaded.items()} == {
        name: content(tensor.view(torch.uint8)) for name, tensor in tensors.items()}


def test_a_type_of_a_later_safetensors_is_named(local):
    header = b'{"x":{"dtype":"F3","shape":[8],"data_offsets":[0,3]}}'
    (local / "file").write_bytes(len(header).to_bytes(8, "little") + header + b"abc")
    with pytest.raises(ValueError, match="type F3"):
        weightfs.safetensors.load_file(local / "file")


@pytest.mark.parametrize("alignment,error", [(0, ValueError), (-64, ValueError), (1000, ValueError), ("64", TypeError)])
def test_an_alignment_that_is_none_is_refused_before_anything_is_written(local, alignment, error):
    with pytest.raises(error, match="storage_alignment"):
        weightfs.torch.save(STATE, local / "file", storage_alignment=alignment)
    assert os.listdir(local) == []


def test_a_save_that_is_interrupted_ends_as_that(local, handle, monkeypatch):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(handle, "write_from", interrupted)
    with pytest.raises(KeyboardInterrupt):
        weightfs.torch.save(STATE, local / "file", handle=handle)
    assert os.listdir(local) == []


def test_a_directory_is_no_checkpoint(local):
    with pytest.raises(IsADirectoryError) as caught:
        weightfs.torch.load(local)
    assert caught.value.filename == str(local)
    # Each descriptor is closed only once, because its number may belong to another file by now.
    others = [os.open("/dev/null", os.O_RDONLY) for _ in range(10)]
    del caught
    gc.collect()
    for other in others:
        os.close(other)


def test_result_releases_the_memory(folder, handle):
    buffer = bytearray(content(random_tensor(5_000_000)))
    assert handle.write_async(buffer, folder / "file").result() == len(buffer)
    buffer.append(1)
    cancelled = handle.write_async(buffer, folder / "file")
    cancelled.cancel()
    cancelled.wait()
    del cancelled
    buffer.append(2)


def test_a_kept_future_releases_the_memory(local, handle):
    buffer, file, go = bytearray(5_000_000), local / "file", threading.Event()
    futures = [handle.write_async(buffer, file, progress=lambda *_: go.wait(100))]
    # Both have to wait, and the second one fails only when its turn comes.
    futures += [handle.read_async(bytearray(5_000_000), file), handle.read_async(bytearray(6_000_000), file)]
    go.set()
    for future in futures:
        future.wait()
    buffer.append(1)
    assert "6000000" in str(futures[2].exception()) and futures[2].exception().shape == (6_000_000,)


def test_wait_in_a_callback_is_refused(folder, handle):
    told = []

    def wait(*_):
        try:
            told.append(handle.wait())
        except OSError as error:
            told.append(error.errno)
        told.append(handle.sync_pwrite(torch.ones(3), folder / "other"))

    assert handle.write_async(random_tensor(3_000_000), folder / "file", progress=wait).result() > 0
    assert set(told) == {errno.EDEADLK, -1}
    assert handle.last_error.errno == errno.EDEADLK
    assert handle.wait() == 0


def test_deferred_validation_uses_the_file_of_the_start(local, handle, monkeypatch):
    monkeypatch.chdir(local)
    tensor, loaded = random_tensor(5000), torch.zeros(5000, dtype=torch.uint8)
    assert handle.pwrite(tensor, "file", True, True) == 0
    monkeypatch.chdir("/")
    assert handle.wait() == 1
    monkeypatch.chdir(local)
    assert handle.pread(loaded, "file", True, True) == 0
    monkeypatch.chdir("/")
    assert handle.wait() == 1
    assert content(loaded) == content(tensor)


def test_deferred_validation_uses_the_file_of_a_closed_descriptor(local, handle):
    tensor, loaded = random_tensor(5000), torch.zeros(5000, dtype=torch.uint8)
    for call, buffer in ((handle.pwrite, tensor), (handle.pread, loaded)):
        descriptor = os.open(local / "file", os.O_RDWR | os.O_CREAT)
        assert call(buffer, descriptor, True, True) == 0
        os.close(descriptor)
        with open("/dev/null", "rb"):   # reuses its number
            assert handle.wait() == 1
    assert content(loaded) == content(tensor)
    with os.scandir("/proc/self/fd") as opened:
        assert str(local / "file") not in [os.readlink(entry) for entry in opened if entry.is_symlink()]


@pytest.mark.parametrize("atomic", [True, False])
def test_a_closed_handle_raises(local, handle, atomic):
    weightfs.torch.save(STATE, local / "file")
    handle.close()
    for call in (lambda: weightfs.torch.load(local / "file", handle=handle),
                 lambda: weightfs.torch.save(STATE, local / "file", handle=handle, atomic=atomic)):
        with pytest.raises(ValueError, match="closed"):
            call()


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("make,reason", [
    (lambda: torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8), "quantized"),
    (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "nested")], ids=["quantized", "nested"])
def test_objects_other_than_plain_tensors_are_refused(local, handle, make, reason):
    with pytest.raises(ValueError, match=f"a {reason} tensor is not stored as plain bytes"):
        handle.write_from(make(), local / "file")


def test_invalid_numbers_and_paths(local, handle):
    with pytest.raises(ValueError, match="mode"):
        handle.save_many({"a": torch.ones(3)}, local, mode=0o7777777)
    assert handle.sync_pwrite(torch.ones(3), f"{local}/a\0b") == -1
    assert handle.last_error.errno == errno.EINVAL
    assert os.listdir(local) == []
