# SPDX-License-Identifier: Apache-2.0
"""Finds the memory of a tensor. Supports torch tensors, numpy arrays, DLPack and every object with the buffer protocol,
and in GPU memory torch tensors and objects with __cuda_array_interface__.

torch is never imported here: a tensor is recognized by its methods."""

from __future__ import annotations

import contextlib
import errno
import operator
import re
import sys
import threading
from typing import Any

from weightfs import _native
from weightfs._core.arguments import MOST_BYTES, bytes_of_shape, check_extent, numbers_of

HUGE = 4 << 20   # bytes; memory of at least this size is worth huge pages
LEAST_MAPPED = 1 << 20   # bytes; loads of less have memory of their own
_NO_STREAM = -1       # the native module's value
_LEGACY_STREAM = 1    # CUDA's default stream in __cuda_array_interface__


def advise_huge_pages(buffer):
    """Asks the kernel for huge pages in host memory of at least HUGE bytes that is about to be filled: a read into new
    memory then takes a page fault for each 2 MiB rather than each 4 KiB. Memory of other kinds stays as it is."""
    memory = describe(buffer, writable=True)
    if memory.nbytes >= HUGE and not memory.on_device and memory.strides is None:
        _native.advise_huge_pages(memory.address, memory.nbytes)


class Memory:
    """The address, element size, shape and strides of a buffer. Strides are in bytes; None means contiguous. `owner`
    keeps the memory alive. `stream` is None for host memory; for GPU memory it is the stream whose work must end before
    an operation begins. `finish`, if not None, must be called after the memory has been read into; any thread may call
    it, and repeated calls are harmless."""

    __slots__ = ("address", "item_size", "shape", "strides", "owner", "label", "stream", "finish", "nbytes")

    def __init__(self, address, item_size, shape, strides, owner, label, stream=None, finish=None):
        """ValueError for impossible numbers, because the object that provides them may not have checked them."""
        self.address, self.item_size, self.shape, self.strides = address, item_size, shape, strides
        self.owner, self.label, self.stream, self.finish = owner, label, stream, finish
        self.nbytes = bytes_of_shape(label, shape, item_size)
        if self.nbytes > 0:
            check_extent(label, address, self.nbytes, shape, strides, item_size)

    @property
    def arguments(self):
        return self.address, self.item_size, self.shape, self.strides, self.stream

    @property
    def on_device(self):
        return self.stream is not None


def describe(buffer, writable=False):
    """The Memory of `buffer`. TypeError if it has no memory, ValueError if the memory is not usable."""
    if hasattr(buffer, "data_ptr") and hasattr(buffer, "is_contiguous"):
        return _of_tensor(buffer, writable)
    if hasattr(buffer, "__cuda_array_interface__"):
        return _of_array(buffer, buffer.__cuda_array_interface__, writable, on_device=True)
    if hasattr(buffer, "__array_interface__") and not _is_numpy_scalar(buffer):
        return _of_array(buffer, buffer.__array_interface__, writable)
    with contextlib.suppress(TypeError):
        return _of_view(memoryview(buffer), buffer, writable)
    if hasattr(buffer, "__dlpack__"):
        return _of_dlpack(buffer, writable)
    raise TypeError(f"expected a tensor, an array or a buffer, not {type(buffer).__name__}")


def _of_tensor(tensor, writable):
    for kind in ("quantized", "nested"):
        if getattr(tensor, f"is_{kind}", False):
            raise ValueError(f"a {kind} tensor is not stored as plain bytes: save each of its parts as a tensor")
    label = f"tensor of shape {tuple(tensor.shape)} and {tensor.dtype}"
    if tensor.device.type not in ("cpu", "cuda"):
        raise ValueError(f"{label} is on {tensor.device}: only CPU and CUDA tensors are supported; "
                         "copy it with .cpu() first")
    if str(tensor.layout) != "torch.strided":
        raise ValueError(f"{label} has the layout {tensor.layout}: only dense tensors are supported")
    if tensor.is_conj() or tensor.is_neg():
        # The memory of such a view holds other numbers than the tensor shows.
        if writable:
            raise ValueError(f"{label} is a lazily conjugated or negated view: it cannot be read into")
        tensor = tensor.resolve_conj().resolve_neg()
    if bytes_of_shape(label, tensor.shape, tensor.element_size()) == 0:   # torch's own numel() may overflow
        return Memory(0, tensor.element_size(), [0], None, tensor, label)
    if tensor.device.type == "cuda":
        return _of_device_tensor(tensor, writable, label)
    address, item_size = tensor.data_ptr(), tensor.element_size()
    if address == 0:
        raise ValueError(f"{label} has no memory")
    strides = None if tensor.is_contiguous() else [step * item_size for step in tensor.stride()]
    return Memory(address, item_size, list(tensor.shape), strides, _storage_of(tensor), label)


def _storage_of(tensor):
    """The storage that keeps the memory alive. A tensor gets another storage when its `data` is set."""
    return tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor


def _of_device_tensor(tensor, writable, label):
    """The GPU gathers memory that is not contiguous, and scatters it after a read."""
    finish, used = None, tensor
    if not tensor.is_contiguous():
        if writable and any(step == 0 and count > 1 for step, count in zip(tensor.stride(), tensor.shape)):
            raise ValueError(f"elements of the {label} share memory: it cannot be read into")
        used = tensor.new_empty(tensor.shape) if writable else tensor.contiguous()
        finish = _Scatter(tensor.detach(), used) if writable else None
    stream = sys.modules["torch"].cuda.current_stream(tensor.device).cuda_stream
    return Memory(used.data_ptr(), used.element_size(), list(used.shape), None, _storage_of(used), label, stream,
                  finish)


class _Scatter:
    """Copies a contiguous tensor into the original one, once, on the stream that is current at that time. No program
    waits for the stream of a callback, so there the copy ends before this returns. If it fails, each call does."""

    def __init__(self, target, source):
        # RLock, because signal handlers call it too. A handler within the copy makes its own.
        self._lock, self._target, self._source, self._failure = threading.RLock(), target, source, None

    def __call__(self):
        with self._lock:
            if self._source is not None:
                try:
                    self._copy(self._source)
                except Exception as failure:
                    self._failure = failure
                # After an exception of a signal handler (KeyboardInterrupt), the next call copies.
                self._source = None
            if self._failure is not None:
                raise self._failure

    def _copy(self, source):
        self._target.copy_(source)
        # Otherwise torch would reuse the memory for another tensor while the copy is under way.
        stream = sys.modules["torch"].cuda.current_stream(source.device)
        source.record_stream(stream)
        if _native.Operation.in_callback():
            stream.synchronize()


def _is_numpy_scalar(buffer):
    """True for a numpy scalar. Its array interface exposes a temporary copy, but it also has a read-only buffer."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(buffer, numpy.generic)


def _of_array(array, facts, writable, on_device=False):
    kind = str(facts["typestr"])   # such as "<f4" or "<M8[ns]"
    label = (f"{'GPU array' if on_device else 'array'} of shape {facts['shape']!r} and "
             f"{getattr(array, 'dtype', kind)}")
    if getattr(getattr(array, "dtype", None), "hasobject", False) or kind[1] == "O":
        raise ValueError(f"{label} holds Python objects, which cannot be transferred as bytes")
    if facts.get("data") is None:
        return _of_view(memoryview(array), array, writable)
    if not isinstance(facts["data"], tuple):
        raise TypeError(f"{label} exposes a copy of its elements, not their memory: convert it to a numpy array")
    (address,), read_only = numbers_of(label, "address", facts["data"][:1]), facts["data"][1]
    if writable and read_only:
        raise ValueError(f"{label} is read-only")
    digits = re.match(r"\d+", kind[2:])
    if digits is None:
        raise ValueError(f"{label} has elements of type {kind!r}, whose size is unknown")
    item_size = int(digits[0]) * (4 if kind[1] == "U" else 1)
    shape, strides = numbers_of(label, "shape", facts["shape"]), facts.get("strides")
    if strides is not None:
        strides = numbers_of(label, "strides", strides)
    memory = Memory(address, item_size, shape, strides, array, label)
    if memory.nbytes == 0:
        return Memory(0, 1, [0], None, array, label)
    if on_device:
        stream = facts.get("stream", _LEGACY_STREAM)
        memory.strides, memory.stream = None, _NO_STREAM if stream is None else stream
        if not _is_one_run(shape, strides, item_size):
            raise ValueError(f"{label} is not contiguous: of GPU arrays, only torch tensors may be non-contiguous")
    return memory


def _is_one_run(shape, strides, item_size):
    expected = item_size
    for count, step in reversed(list(zip(shape, strides or ()))):
        if count != 1 and step != expected:
            return False
        expected *= count
    return True


def _of_view(view, buffer, writable):
    label = f"{type(buffer).__name__} of {view.nbytes} bytes"
    if writable and view.readonly:
        raise ValueError(f"{label} is read-only")
    address, item_size, shape, strides, _ = _native.describe_buffer(view)
    # Keeps the memoryview: while it exists, a bytearray cannot be resized.
    if view.nbytes == 0:
        return Memory(0, 1, [0], None, view, label)
    return Memory(address, item_size, list(shape), strides, view, label)


def _of_dlpack(buffer, writable):
    """Imports the buffer by torch or numpy, whichever is loaded; both share the memory."""
    torch = sys.modules.get("torch")
    if torch is not None:
        return describe(torch.from_dlpack(buffer), writable)
    try:
        import numpy
    except ImportError:
        raise TypeError(f"{type(buffer).__name__} supports only DLPack: install numpy or torch to use it") from None
    return describe(numpy.from_dlpack(buffer), writable)


def new_like(num_elem, example):
    """Returns zeroed, page-aligned, locked 1-D memory of the example's element type: a torch tensor or a numpy array.
    The native memory lives as long as any view of it. OSError if locking is not permitted."""
    num_elem = operator.index(num_elem)
    if num_elem < 0:
        raise ValueError(f"num_elem is {num_elem}: it cannot be negative")
    if hasattr(example, "data_ptr"):
        import torch as library
        if num_elem == 0:
            return library.empty(0, dtype=example.dtype)
        item_size = example.element_size()
    elif hasattr(example, "__array_interface__"):
        import numpy as library
        item_size = example.dtype.itemsize
    else:
        raise TypeError(f"example_tensor must be a tensor or an array, not {type(example).__name__}")
    if num_elem * item_size > MOST_BYTES:
        raise OSError(errno.ENOMEM, f"{num_elem} elements of {item_size} bytes are more than any memory can hold")
    memory = _native.LockedMemory(num_elem * item_size)
    return library.frombuffer(memory, dtype=example.dtype, count=num_elem)


def unlock(tensor):
    """Unlocks a tensor's memory. Returns False if no locked memory begins at its address."""
    with contextlib.suppress(ValueError):
        return _native.unlock(describe(tensor).address)
    return False


def is_pinned(buffer: Any) -> bool:
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
