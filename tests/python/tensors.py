# SPDX-License-Identifier: Apache-2.0
"""Tensors and files that the tests compare."""

import json
import os

import torch

from harness.filesystems import weightfs as command


def random_tensor(count, dtype=torch.uint8, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count * dtype.itemsize,), dtype=torch.uint8, generator=generator).view(dtype)


def content(tensor):
    """The bytes of a tensor in row-major order."""
    return tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def misaligned(tensor, by):
    """The same values, starting `by` bytes after a page boundary."""
    memory = torch.empty(tensor.nbytes + by + 8192, dtype=torch.uint8)
    begin = -memory.data_ptr() % 4096 + by
    view = memory[begin:begin + tensor.nbytes].view(tensor.dtype)
    return view.copy_(tensor)


def flip_on_device(store, path, offset):
    """Changes a byte of a file at its location on the device."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
    extents = json.loads(command("info", "--json", path).out)["extents"]
    extent = next(extent for extent in extents if 0 <= offset - extent["logical"] < extent["length"])
    at = extent["physical"] + offset - extent["logical"]
    pool = os.open(store.directory / "pool", os.O_RDWR)
    try:
        byte = os.pread(pool, 1, at)[0]
        os.pwrite(pool, bytes([byte ^ 1]), at)
        os.fsync(pool)
    finally:
        os.close(pool)
