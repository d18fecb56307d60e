# SPDX-License-Identifier: Apache-2.0
"""Models in the safetensors format for the tests."""

import json
import struct

import torch

from tensors import random_tensor
from weightfs.safetensors import save_file
from weightfs.safetensors._format import DTYPES

PACKED = getattr(torch, "float4_e2m1fn_x2", None)


def model_of_all_types():
    """A tensor of each type that this torch has, with random bits; empty ones and scalars."""
    tensors = {f"type.{name}": random_tensor(30 * 7, dtype, seed).view(30, 7)
               for seed, (name, dtype) in enumerate(DTYPES.items()) if dtype not in (torch.bool, PACKED)}
    if PACKED is not None:
        tensors["type.F4"] = random_tensor(30 * 8).view(30, 8).view(PACKED)
    return tensors | {"type.BOOL": random_tensor(210).view(30, 7) > 100, "scalar": torch.tensor(1.5),
                      "empty": torch.empty(0, 7), "empty inside": torch.empty(3, 0, 2), "ünï\"x": torch.randn(3, 4, 5)}


def large_model(seed=1, size=6 << 20):
    """Tensors above and below the size that takes a lease or shares a read."""
    return {f"{seed}.{name}": random_tensor(count, torch.int16, seed + at).view(-1, 8)
            for at, (name, count) in enumerate({"a": size // 2, "b": 88, "c": 40_000, "d": size, "e": 8}.items())}


def shards(folder, count=3, index=True):
    """Writes several files, and an index. Returns all tensors."""
    tensors, weight_map = {}, {}
    for number in range(count):
        name, part = f"model-{number}.safetensors", large_model(number + 1)
        save_file(part, folder / name, {"format": "pt", "number": str(number)})
        tensors |= part
        weight_map |= dict.fromkeys(part, name)
    if index:
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return tensors


def file_of(header, data):
    """The bytes of a file with any header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def same(a, b):
    """Whether two tensors are equal in dtype, shape and every bit."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.numel() and a.dtype != PACKED:   # torch cannot copy these
        a, b = (tensor.clone(memory_format=torch.contiguous_format) for tensor in (a, b))
    return a.numel() == 0 or torch.equal(*(tensor.reshape(-1).view(torch.uint8) for tensor in (a, b)))
