# SPDX-License-Identifier: Apache-2.0
"""Overlapping operations of a handle that are pending at the same time."""

import os

import pytest
import torch

import weightfs
from operations import StandingWrite, once_waiting


def test_the_last_of_several_writes_of_a_range_is_what_stays(folder):
    handle = weightfs.aio_handle(4096, 4, False, True, 2)
    tensors = [torch.full((40_000,), i, dtype=torch.uint8) for i in range(4)]
    targets = [torch.empty(40_000, dtype=torch.uint8) for _ in tensors]
    (folder / "file").write_bytes(bytes(100_000))
    for _ in range(25):
        for tensor, target in zip(tensors, targets):
            assert handle.async_pwrite(tensor, folder / "file", 100) == 0
            assert handle.async_pread(target, folder / "file", 100) == 0
        assert handle.wait() == 8
        assert all(torch.equal(tensor, target) for tensor, target in zip(tensors, targets))
        assert (folder / "file").read_bytes()[100:40_100] == tensors[-1].numpy().tobytes()


def test_large_operations_keep_their_order_too(folder):
    handle = weightfs.aio_handle(1 << 20, 4, False, True, 2)
    tensors = [torch.full((9 << 20,), i, dtype=torch.uint8) for i in range(1, 4)]
    target = torch.empty(9 << 20, dtype=torch.uint8)
    for _ in range(5):
        futures = [handle.write_async(tensor, folder / "file") for tensor in tensors]
        [future.result() for future in futures]
        assert handle.async_pwrite(tensors[0], folder / "file") == 0
        assert handle.async_pread(target, folder / "file") == 0
        assert handle.sync_pwrite(tensors[1], folder / "file") == 3
        assert torch.equal(target, tensors[0])
        assert handle.sync_pread(target, folder / "file") == 1
        assert torch.equal(target, tensors[1])


def test_atomic_writes_keep_their_order_too(folder):
    handle = weightfs.aio_handle(1 << 20, 4, False, True, 2)
    tensors = [torch.full((size,), i, dtype=torch.uint8) for i, size in enumerate([9 << 20, 5000, 6 << 20, 40_000])]
    targets = [torch.empty_like(tensor) for tensor in tensors]
    (folder / "file").write_bytes(bytes(100_000))
    for _ in range(5):
        futures = []
        for tensor, target in zip(tensors, targets):
            futures.append(handle.write_async(tensor, folder / "file", atomic=True))
            futures.append(handle.read_async(target[:5000], folder / "file"))
        assert [future.result() for future in futures] == [9 << 20, 5000, 5000, 5000, 6 << 20, 5000, 40_000, 5000]
        assert all(torch.equal(tensor[:5000], target[:5000]) for tensor, target in zip(tensors, targets))
        assert (folder / "file").read_bytes() == tensors[-1].numpy().tobytes()
    assert [path.name for path in folder.iterdir()] == ["file"]


def elsewhere_then(go):
    """Once a call in the block waits, changes the working directory and calls `go`."""
    def move():
        os.chdir("/")
        go()
    return once_waiting(move, ("save_many", "load_many"))


@pytest.mark.parametrize("direct", ["auto", "never", "require"])
def test_load_many_waits_for_earlier_operations(work, direct, monkeypatch):
    monkeypatch.chdir(work)
    old, new, loaded = (torch.full((5 << 20,), value, dtype=torch.uint8) for value in (0, 1, 2))
    with weightfs.aio_handle(intra_op_parallelism=2, direct=direct) as handle:
        handle.save_many({"a": old, "b": old}, work)
        standing = StandingWrite(handle, new, work / "a")
        other = torch.empty_like(old)
        with elsewhere_then(standing.go):
            handle.load_many({"a": loaded, "b": other}, ".")
        assert standing.future.done() and loaded.unique().tolist() == [1] and other.unique().tolist() == [0]


@pytest.mark.parametrize("direct", ["auto", "never", "require"])
def test_save_many_waits_for_earlier_operations(work, direct, monkeypatch):
    old, new, last = (torch.full((5 << 20,), value, dtype=torch.uint8) for value in (0, 1, 2))
    with weightfs.aio_handle(intra_op_parallelism=2, direct=direct) as handle:
        for atomic in (True, False):
            handle.save_many({"a": old, "b": old}, work)
            standing = StandingWrite(handle, new, work / "a", atomic=atomic)
            monkeypatch.chdir(work)
            with elsewhere_then(standing.go):
                handle.save_many({"a": last, "b": last}, ".")
            assert standing.future.result() == 5 << 20
            assert (work / "a").read_bytes() == (work / "b").read_bytes() == last.numpy().tobytes()
