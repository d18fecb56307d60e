# SPDX-License-Identifier: Apache-2.0
"""Memory that one read fills and that then becomes tensors, each with a storage of its own, or arrays of numpy."""

import torch

from weightfs import _native
from weightfs._core.memory import HUGE
from weightfs.safetensors._format import DTYPES, SafetensorValueError

BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}   # types by their size that all libraries know
_PAGE = 4096
_CACHE_LINE = 64   # torch's alignment of memory


def memory_for(device, size, offset):
    """Memory for `size` bytes that begin at `offset` in a file. Its `target` is the buffer to read into."""
    return _HostMemory(size, offset) if device.type == "cpu" else _DeviceMemory(size, device)


def mapped_memory(file, size, offset):
    """The same on the CPU, of a file that has the bytes: pages that are written to become private copies."""
    return _HostMemory(size, offset, file)


class _Memory:
    shared = False   # True: other programs have it, too

    def tensors(self, header, base=0):
        """name -> tensor, of facts by name; the memory has the data of the file from offset `base` on."""
        return {name: self.tensor(facts, base) for name, facts in header.items()}

    def tensor(self, facts, base=0):
        """The tensor with these facts. At most one tensor of each range may be made."""
        begin, end = facts["data_offsets"]
        dtype, shape = DTYPES[facts["dtype"]], facts["shape"]
        if begin == end:
            return torch.empty(shape, dtype=dtype, device=self.device)
        return self._piece(begin - base, end - base, dtype).view(shape)


class _HostMemory(_Memory):
    """Large memory begins at the same offset within a page as the data in the file, so that nothing needs to be copied.
    The tensors are parts of one allocation: each that is freed gives its pages back."""

    device = torch.device("cpu")

    def __init__(self, size, offset, file=None):
        self._lead = offset % (_PAGE if size >= HUGE or file is not None else _CACHE_LINE)
        if file is None:
            self._memory = _native.DividedMemory(self._lead + size)
        else:
            self.shared = True
            self._memory = _native.DividedMemory.of_file(file, offset - self._lead, self._lead + size)
        self.target = memoryview(self._memory)[self._lead:]

    def _piece(self, begin, end, dtype):
        part = self._memory.take(self._lead + begin, end - begin)
        if (self._lead + begin) % dtype.itemsize == 0:
            return torch.frombuffer(part, dtype=dtype)
        # Files of other programs need not align tensors to their element size.
        return torch.frombuffer(part, dtype=torch.uint8).clone().view(dtype)


class _DeviceMemory(_Memory):
    """A tensor that fills the memory is that memory. Others are copies, because a GPU frees an allocation only as a
    whole."""

    def __init__(self, size, device):
        self.device = device
        self.target = torch.empty(size, dtype=torch.uint8, device=device)

    def _piece(self, begin, end, dtype):
        piece = self.target[begin:end]
        return (piece if len(piece) == len(self.target) else piece.clone()).view(dtype)


def to_numpy(tensor):
    """An array over the memory of a CPU tensor. TypeError if numpy does not have its type: some, such as bfloat16, are
    added by the package ml_dtypes."""
    import numpy
    dtype = numpy.dtype(_name_of(tensor.dtype))
    return tensor.view(BITS[tensor.dtype.itemsize]).numpy().view(dtype)


def check_array(name, array):
    """Returns an array in the machine's byte order, and the torch dtype of its elements. SafetensorValueError for
    anything that the format cannot store."""
    import numpy
    if not isinstance(array, (numpy.ndarray, numpy.generic)):
        raise SafetensorValueError(f"a dict of names and arrays is needed; it has {name!r}: {type(array).__name__}")
    found = next((dtype for dtype in DTYPES.values() if _name_of(dtype) == array.dtype.name), None)
    if found is None:
        raise SafetensorValueError(f"{name}: safetensors has no {array.dtype.name}")
    return numpy.asarray(array, dtype=array.dtype.newbyteorder("=")), found


def _name_of(dtype):
    return str(dtype).partition(".")[2]
