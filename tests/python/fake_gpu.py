# SPDX-License-Identifier: Apache-2.0
"""The GPU of tests/support/fake_gpu, for machines without a GPU: its memory and its counters."""

import copy
import ctypes
import math

import torch

from harness.filesystems import program

FOLDER = program().parent / "fake_gpu"
LIBRARY = FOLDER / "libcuda.so.1"
CUFILE = FOLDER / "libcufile.so.0"
SANITIZERS = (b"__asan_init", b"__tsan_init")   # Python cannot load libraries built with them
# cuFile reports direct access to all filesystems: NVMe, SCSI, and those for which the real one has no bit
DIRECT = 1 << 4 | 1 << 6 | 1 << 31
_U64 = ctypes.c_uint64


class Counts(ctypes.Structure):
    _fields_ = [(name, _U64) for name in (
        "copies_to_gpu", "copies_to_host", "copies_of_unlocked_memory", "most_copies_at_once", "cufile_reads",
        "cufile_writes", "pinned_transfers", "contexts", "streams", "events", "page_locks", "files", "pins",
        "mistakes")]


class FakeGpu:
    def __init__(self):
        self.library = ctypes.CDLL(str(LIBRARY))
        for name, result, *arguments in (
                ("allocate", _U64, ctypes.c_size_t, ctypes.c_int), ("free", None, _U64),
                ("poke", None, _U64, ctypes.c_char_p, ctypes.c_size_t),
                ("peek", None, _U64, ctypes.c_char_p, ctypes.c_size_t),
                ("fail", None, ctypes.c_char_p, ctypes.c_int, ctypes.c_int, ctypes.c_int),
                ("set_kinds", None, ctypes.c_uint), ("set_devices", None, ctypes.c_int), ("reset", None),
                ("release", None), ("count", None, ctypes.POINTER(Counts)),
                ("hold_default_stream", None, ctypes.c_int, _U64, ctypes.c_char_p, ctypes.c_size_t)):
            function = getattr(self.library, f"fake_gpu_{name}")
            function.restype, function.argtypes = result, arguments
            setattr(self, f"_{name}", function)
        self.set_kinds, self.set_devices, self.reset, self.release = (
            self._set_kinds, self._set_devices, self._reset, self._release)

    def fail(self, function, after=0, times=1, status=1):
        self._fail(function.encode(), after, times, status)

    def counts(self):
        counts = Counts()
        self._count(counts)
        return counts

    def hold(self, array, content):
        """Puts work into the default stream that writes `content` to the array once release() is called."""
        self._hold_default_stream(0, array.address, content, len(content))

    def array(self, content=b"", size=None, **facts):
        array = Array(self, size if size is not None else len(content), **facts)
        if content:
            array.set(content)
        return array

    def tensor(self, values, transposed=False):
        return Tensor(self, values, transposed)


class Array:
    """Bytes on the GPU that a program sees through __cuda_array_interface__, like an array of cupy or numba."""

    def __init__(self, gpu, size, **facts):
        self.gpu, self.size, self.facts = gpu, size, facts
        self.address = gpu._allocate(max(size, 1), 0)

    @property
    def __cuda_array_interface__(self):
        return {"shape": (self.size,), "typestr": "|u1", "data": (self.address, False), "strides": None, "version": 3,
                "stream": 1} | self.facts

    def new_empty(self, size):
        return Array(self.gpu, size)

    def set(self, content):
        self.gpu._poke(self.address, bytes(content), len(content))

    def content(self):
        buffer = ctypes.create_string_buffer(max(self.size, 1))
        self.gpu._peek(self.address, buffer, self.size)
        return buffer.raw[:self.size]

    def __del__(self):
        self.gpu._free(self.address)


class _Device:
    type, index = "cuda", 0

    def __str__(self):
        return "cuda:0"


class Tensor:
    """The part of a torch GPU tensor's interface that weightfs uses. Transposed, it is not contiguous."""

    device, layout, is_quantized = _Device(), torch.strided, False

    def __init__(self, gpu, values, transposed=False):
        self.gpu, self.dtype, self.transposed, self.streams = gpu, values.dtype, transposed, []
        self.stored = values.t() if transposed else values   # as stored in memory
        self.memory = Array(gpu, values.nbytes)
        self.memory.set(self.stored.contiguous().view(torch.uint8).numpy().tobytes())

    def untyped_storage(self):
        return self.memory

    def alias(self):
        """Another tensor of the same memory."""
        other = copy.copy(self)
        other.streams = []
        return other

    @property
    def shape(self):
        return tuple(reversed(self.stored.shape)) if self.transposed else tuple(self.stored.shape)

    def values(self):
        flat = torch.frombuffer(bytearray(self.memory.content()), dtype=self.dtype).view(self.stored.shape)
        return flat.t() if self.transposed else flat

    def data_ptr(self):
        return self.memory.address

    def element_size(self):
        return self.dtype.itemsize

    def numel(self):
        return math.prod(self.shape)

    def stride(self):
        stride = self.stored.contiguous().stride()
        return tuple(reversed(stride)) if self.transposed else stride

    def is_contiguous(self):
        return not self.transposed

    def is_conj(self):
        return False

    is_neg = is_conj

    def is_pinned(self):
        return False

    def detach(self):
        return self

    def new_empty(self, shape):
        shape = shape if isinstance(shape, tuple) else (shape,)
        return Tensor(self.gpu, torch.zeros(shape, dtype=self.dtype))

    def record_stream(self, stream):
        self.streams.append(stream)

    def contiguous(self):
        return Tensor(self.gpu, self.values().contiguous())

    def copy_(self, other):
        self.source, values = other, other.values()
        self.memory.set((values.t() if self.transposed else values).contiguous().view(torch.uint8).numpy().tobytes())
