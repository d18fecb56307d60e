# SPDX-License-Identifier: Apache-2.0
"""The ranks of test_dcp.py: RANK WORLD STORE DIRECTORY ACTION… They shard tensors by rows or columns, save with our
storage or torch's, load with either, and compare."""

import os
import sys
import warnings

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from weightfs.dcp import StorageReader, StorageWriter

WRITERS = {"ours": StorageWriter, "torch": dcp.FileSystemWriter}
READERS = {"ours": StorageReader, "torch": dcp.FileSystemReader}


def tensors(seed):
    generator = torch.Generator().manual_seed(seed)
    shapes = {"large": (1200, 1000), "wide": (6, 200_000), "small": (30, 40), "vector": (700_001,)}
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def sharded(seed, dimension, mesh, blank=False):
    def shard(tensor):
        tensor = torch.zeros_like(tensor) if blank else tensor
        if mesh is None:
            return tensor
        return distribute_tensor(tensor, mesh, [Shard(min(dimension, tensor.dim() - 1))])
    state = {name: shard(tensor) for name, tensor in tensors(seed).items()}
    return {"model": state, "step": -1 if blank else seed, "plain": torch.zeros(5) if blank else torch.arange(5.) + seed}


def check(state, seed):
    for name, expected in tensors(seed).items():
        loaded = state["model"][name]
        whole = loaded.full_tensor() if hasattr(loaded, "full_tensor") else loaded
        assert torch.equal(whole, expected), name
    assert state["step"] == seed and torch.equal(state["plain"], torch.arange(5.) + seed)


def act(action, path, mesh):
    what, who, seed, dimension = action.split(":")
    seed, dimension = int(seed), int(dimension)
    if what == "load":
        state = sharded(seed, dimension, mesh, blank=True)
        dcp.load(state, storage_reader=READERS[who](path))
        check(state, seed)
        return
    state, options = sharded(seed, dimension, mesh), {"storage_writer": WRITERS[who](path)}
    if what == "save":
        dcp.save(state, **options)
        return
    kind = AsyncCheckpointerType.PROCESS if what == "process" else AsyncCheckpointerType.THREAD
    saving = dcp.async_save(state, async_checkpointer_type=kind, **options)
    for tensor in state["model"].values():   # the state may change meanwhile
        getattr(tensor, "_local_tensor", tensor).zero_()
    saving.result()


def main(rank, world, store, path, *actions):
    warnings.simplefilter("ignore")
    os.environ.update(RANK=rank, WORLD_SIZE=world)
    dist.init_process_group("gloo", store=dist.FileStore(store, int(world)), rank=int(rank), world_size=int(world))
    mesh = init_device_mesh("cpu", (int(world),)) if int(world) > 1 else None
    for action in actions:
        act(action, path, mesh)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
    # Without the end of the interpreter: during it, a thread of gloo may still free a tensor, which aborts the process
    # (pytorch/pytorch#190489; 1 of 50 runs with torch's own storage).
    sys.stdout.flush()
    os._exit(0)
