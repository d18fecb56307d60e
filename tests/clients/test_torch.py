# SPDX-License-Identifier: Apache-2.0
"""torch: checkpoints, mapped checkpoints, storages written at their offsets, tensors shared through files."""

import sys
from pathlib import Path

import pytest
import torch

from harness import needs, process
from torch_steps import equal, state

STEPS = Path(__file__).with_name("torch_steps.py")


def test_one_tensor(mount, work):
    expected = torch.randn(1000, 1003, generator=torch.Generator().manual_seed(1))
    torch.save(expected, work / "tensor.pt")
    assert torch.equal(torch.load(work / "tensor.pt"), expected)
    mount.remount()
    assert torch.equal(torch.load(work / "tensor.pt"), expected)


@pytest.mark.parametrize("weights_only", [True, False])
@pytest.mark.parametrize("mapped", [True, False])
def test_state_dict(mount, work, weights_only, mapped):
    torch.save(state(), work / "model.pt")
    mount.remount()
    loaded = torch.load(work / "model.pt", weights_only=weights_only, mmap=mapped)
    assert equal(loaded, state())


def test_saved_file_equals_the_one_on_the_local_disk(mount, work, local):
    for place in (work, local):
        torch.save(state(), place / "model.pt")
    mount.remount()
    assert (work / "model.pt").read_bytes() == (local / "model.pt").read_bytes()


def test_legacy_format_which_is_no_zip_file(mount, work):
    torch.save(state(), work / "model.pt", _use_new_zipfile_serialization=False)
    mount.remount()
    assert equal(torch.load(work / "model.pt"), state())


def test_module_and_optimizer_resume_after_a_remount(mount, work):
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(16, 64)).square().sum().backward()
        optimizer.step()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 3}, work / "last.ckpt")
    mount.remount()
    loaded = torch.load(work / "last.ckpt")
    assert loaded["step"] == 3 and equal(loaded["model"], model.state_dict())
    saved = optimizer.state_dict()["state"]
    assert all(torch.equal(loaded["optimizer"]["state"][index][name], tensor)
               for index, slots in saved.items() for name, tensor in slots.items())


def test_save_into_an_open_file_object_and_over_an_older_checkpoint(mount, work):
    path = work / "model.pt"
    path.write_bytes(b"older and longer" * 1_000_000)
    with open(path, "wb") as stream:
        torch.save(state(), stream)
    mount.remount()
    with open(path, "rb") as stream:
        assert equal(torch.load(stream), state())


def test_another_process_loads_what_one_saved(mount, work):
    process.run([sys.executable, STEPS, "save", work / "model.pt"])
    process.run([sys.executable, STEPS, "load_mapped", work / "model.pt"])
    mount.remount()
    process.run([sys.executable, STEPS, "load_mapped", work / "model.pt"])


@pytest.fixture
def aligned_storages():
    from torch.utils.serialization import config
    with config.patch({"save.storage_alignment": 4096}):
        yield 4096


@needs.torch("2.7")
def test_storages_left_out_then_written_at_their_offsets(mount, work, aligned_storages):
    """torch.serialization.skip_data leaves holes. Each storage is written later at its offset, in any order."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    expected, path = state(), work / "model.pt"
    with torch.serialization.skip_data():
        torch.save(expected, path)
    with FakeTensorMode():
        offsets = {name: tensor.untyped_storage()._checkpoint_offset
                   for name, tensor in torch.load(path).items() if tensor.numel()}
    assert all(offset % aligned_storages == 0 for offset in offsets.values())
    with open(path, "r+b") as stream:
        for name in sorted(offsets, reverse=True):
            stream.seek(offsets[name])
            stream.write(expected[name].contiguous().view(torch.uint8).numpy().tobytes()
                         if expected[name].dim() else expected[name].numpy().tobytes())
    mount.remount()
    assert equal(torch.load(path), expected)
    assert equal(torch.load(path, mmap=True), expected)


def test_tensor_shared_through_a_file(mount, work):
    path, count = work / "shared.bin", 1_000_003
    shared = torch.from_file(str(path), shared=True, size=count, dtype=torch.float32)
    shared.copy_(torch.arange(count, dtype=torch.float32))
    other = torch.from_file(str(path), shared=True, size=count, dtype=torch.float32)
    other[17] = -1
    assert shared[17] == -1
    del shared, other
    mount.remount()
    expected = torch.arange(count, dtype=torch.float32)
    expected[17] = -1
    assert path.stat().st_size == count * 4
    assert path.read_bytes() == expected.numpy().tobytes()


def test_private_tensor_from_a_file_leaves_the_file_alone(mount, work):
    path = work / "private.bin"
    expected = torch.arange(500_000, dtype=torch.int64)
    path.write_bytes(expected.numpy().tobytes())
    private = torch.from_file(str(path), shared=False, size=500_000, dtype=torch.int64)
    assert torch.equal(private, expected)
    private.zero_()
    del private
    mount.remount()
    assert path.read_bytes() == expected.numpy().tobytes()


@pytest.mark.parametrize("shared", [True, False])
def test_untyped_storage_from_a_file(mount, work, shared):
    path = work / "storage.bin"
    path.write_bytes(bytes(range(256)) * 1000)
    storage = torch.UntypedStorage.from_file(str(path), shared=shared, nbytes=256_000)
    assert bytes(storage[0:256].tolist()) == bytes(range(256))
    storage[5] = 99
    del storage
    mount.remount()
    assert path.read_bytes()[5] == (99 if shared else 5)


def test_storage_reads_and_writes_through_a_file(mount, work):
    path = work / "storage.bin"
    expected = torch.arange(300_000, dtype=torch.float32)
    with open(path, "wb") as stream:
        expected.untyped_storage()._write_file(stream, True, True, 1)
    mount.remount()
    with open(path, "rb") as stream:
        loaded = torch.UntypedStorage._new_with_file(stream, 1)
    assert torch.equal(torch.empty(0).set_(loaded), expected)
