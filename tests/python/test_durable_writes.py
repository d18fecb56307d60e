# SPDX-License-Identifier: Apache-2.0
"""Writes with durable=True are there after the mount was killed, as the table in docs/DIRECT.md says. Nothing
else commits them, because the mount's own commit is an hour away."""

import pytest
import torch

import weightfs
import weightfs.safetensors
import weightfs.torch
from tensors import random_tensor

pytestmark = pytest.mark.usefixtures("weightfs_only")
MIB = 1 << 20
OLD, NEW = random_tensor(3 * MIB + 17, seed=1), random_tensor(2 * MIB + 5, seed=2)


def read_bytes(path):
    return torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8)


def write(path, tensor, handle):
    handle.write_from(tensor, path, durable=True)


def write_async(path, tensor, handle):
    handle.write_async(tensor, path, durable=True).result()


def write_atomically(path, tensor, handle):
    handle.write_from(tensor, path, durable=True, atomic=True)


def save_many(path, tensor, handle):
    handle.save_many({path.name: tensor}, path.parent)   # durable by default


def save_torch(path, tensor, handle):
    weightfs.torch.save(tensor, path, durable=True, atomic=False, handle=handle)


def save_safetensors(path, tensor, handle):
    weightfs.safetensors.save_file({"tensor": tensor}, path, durable=True, atomic=False, handle=handle)


def load_safetensors(path):
    return weightfs.safetensors.load_file(path)["tensor"]


@pytest.mark.parametrize("direct", ["auto", "never"])
@pytest.mark.parametrize("save, read", [(write, read_bytes), (write_async, read_bytes),
                                        (write_atomically, read_bytes), (save_many, read_bytes),
                                        (save_torch, torch.load), (save_safetensors, load_safetensors)],
                         ids=lambda function: function.__name__)
def test_a_durable_write_survives_a_kill_of_the_mount(factory, save, read, direct):
    mount = factory.mount(factory.store("128M"), "commit=3600")
    with weightfs.aio_handle(direct=direct) as handle:
        for tensor in (OLD, NEW):
            save(mount.path / "file", tensor, handle)
        mount.kill9()
        assert (handle.direct_operations > 0) == (direct == "auto")
    mount.mount()
    assert torch.equal(read(mount.path / "file"), NEW)
    mount.fsck()
