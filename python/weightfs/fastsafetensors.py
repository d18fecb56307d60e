# SPDX-License-Identifier: Apache-2.0
"""A copier of fastsafetensors that reads through a handle.

    import weightfs.fastsafetensors

    weightfs.fastsafetensors.register("gds", "nogds")   # of SafeTensorsFileLoader, fastsafe_open and vLLM
    weightfs.fastsafetensors.register()                 # or by a name of its own, as copier_type="weightfs"."""

from __future__ import annotations

from typing import Any

from fastsafetensors.copier import CopierInterface, register_copier_constructor
from fastsafetensors.copier.base import validated_byte_ranges, validated_chunk_allocation_size
from fastsafetensors.st_types import DeviceType, DType

from weightfs._core.handle import mode_of_process, the_handle
from weightfs._core.memory import advise_huge_pages
from weightfs._core.streams import errors_of, name_of

__all__ = ["Copier", "register"]


def register(*copier_types: str) -> None:
    """Registers the copier under the names, by default "weightfs". Under the name of another copier it takes the place
    of that one in all loaders that are created afterwards."""
    for name in copier_types or ("weightfs",):
        register_copier_constructor(name, Copier)(lambda device, **options: Copier)


class _Memory:
    """A range of the memory that fastsafetensors allocates, on the host or a GPU."""

    def __init__(self, address, nbytes, on_device):
        facts = {"data": (address, False), "shape": (nbytes,), "typestr": "|u1", "version": 3}
        setattr(self, "__cuda_array_interface__" if on_device else "__array_interface__", facts)


class Copier(CopierInterface):
    """Reads the tensors of one file, all, some ranges, or a chunk. The reads of several files overlap."""

    def __init__(self, metadata: Any, device: Any, framework: Any) -> None:
        self.metadata, self._device, self._framework = metadata, device, framework
        self._runs, self._names, self._allocation = None, None, None
        self._base, self._reads = metadata.header_length, []
        self._file = open(metadata.src, "rb", buffering=0)   # closed by finish_io
        self._opened_as = name_of(self._file.fileno())

    def set_byte_ranges(self, byte_ranges):
        self._runs = validated_byte_ranges(self.metadata, byte_ranges)

    def set_chunk(self, byte_ranges, names, allocation_size=None):
        self.set_byte_ranges(byte_ranges)
        self._names, self._allocation = names, validated_chunk_allocation_size(self._runs, allocation_size)
        self._base = self._runs[0][0] if self._runs else self._base

    @classmethod
    def chunk_transient_multiplier(cls, paths):
        return 1

    @classmethod
    def fixed_device_overhead(cls, paths):
        return 0

    def submit_io(self, use_buf_register, max_copy_block_size):
        runs = [(self._base, self.metadata.size_bytes)] if self._runs is None else self._runs
        end = self.metadata.size_bytes if self._names is None else max((end for _, end in runs), default=self._base)
        gbuf = self._framework.alloc_tensor_memory(self._allocation or end - self._base, self._device)
        try:
            self._start(gbuf.get_base_address() - self._base, runs, self._device.type != DeviceType.CPU)
        except BaseException:
            self._drain()
            self._framework.free_tensor_memory(gbuf, self._device)
            raise
        return gbuf

    def _start(self, address, runs, on_device):
        with errors_of(self.metadata.src, self._opened_as), the_handle(
                None, mode_of_process() if on_device else None) as handle:
            for begin, end in runs:
                memory = _Memory(address + begin, end - begin, on_device)
                advise_huge_pages(memory)
                self._reads.append(handle.read_async(memory, self._opened_as, begin))

    def wait_io(self, gbuf, dtype=DType.AUTO, noalign=False, owner=None):
        self.finish_io()
        return self.metadata._get_tensors(gbuf, self._device, self._base, dtype=dtype, names=self._names, owner=owner)

    def finish_io(self):
        with errors_of(self.metadata.src, self._opened_as):
            for read in self._drain():
                read.result()

    def _drain(self):
        """Waits for the reads and returns them. If a signal handler raises here, the loader drains again before it
        frees the memory."""
        for read in self._reads:
            read.wait()
        reads, self._reads = self._reads, []
        self._file.close()
        return reads
