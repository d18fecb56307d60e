# SPDX-License-Identifier: Apache-2.0
"""Tensors and files that the tests compare."""

import torch


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
