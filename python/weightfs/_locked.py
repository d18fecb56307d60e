# SPDX-License-Identifier: Apache-2.0
"""Locked torch tensors and numpy arrays. Their native memory lives as long as any of them."""

import contextlib
import operator

from weightfs import _native
from weightfs._memory import describe
from weightfs._numbers import bytes_of_elements


def new_like(num_elem, example):
    """Returns zeroed, page-aligned, locked 1-D memory of the example's element type. OSError if locking is not
    permitted."""
    num_elem = operator.index(num_elem)
    if num_elem < 0:
        raise ValueError(f"num_elem is {num_elem}: it cannot be negative")
    if hasattr(example, "data_ptr"):
        import torch
        if num_elem == 0:
            return torch.empty(0, dtype=example.dtype)
        memory = _native.LockedMemory(bytes_of_elements(num_elem, example.element_size()))
        return torch.frombuffer(memory, dtype=example.dtype, count=num_elem)
    if hasattr(example, "__array_interface__"):
        import numpy
        memory = _native.LockedMemory(bytes_of_elements(num_elem, example.dtype.itemsize))
        return numpy.frombuffer(memory, dtype=example.dtype, count=num_elem)
    raise TypeError(f"example_tensor must be a tensor or an array, not {type(example).__name__}")


def unlock(tensor):
    """Unlocks a tensor's memory. Returns False if no locked memory begins at its address."""
    with contextlib.suppress(ValueError):
        return _native.unlock(describe(tensor).address)
    return False


def is_pinned(buffer):
    if callable(getattr(buffer, "is_pinned", None)):
        with contextlib.suppress(RuntimeError):   # torch without a GPU cannot pin memory
            if buffer.is_pinned():
                return True
    try:
        memory = describe(buffer)
    except ValueError:
        return False   # not a tensor with memory
    return memory.nbytes > 0 and not memory.on_device and _native.is_locked(memory.address, _span(memory))


def _span(memory):
    """The number of bytes from the first element to the end of the last one. For a view this does not exceed the region
    that it is part of."""
    if memory.strides is None:
        return memory.nbytes
    return sum((count - 1) * abs(step) for count, step in zip(memory.shape, memory.strides)) + memory.item_size
