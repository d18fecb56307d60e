# SPDX-License-Identifier: Apache-2.0
"""The handle for GPU tensors. It uses cuFile (GPUDirect Storage), or page-locked bounce buffers if cuFile gains
nothing."""

import contextlib
import errno
import operator
import os
import weakref

from weightfs import _native
from weightfs._arguments import find_cufile
from weightfs._handle import aio_handle, log
from weightfs._memory import describe

MODES = ("auto", "cufile", "bounce")


class gds_handle(aio_handle):  # noqa: N801  (DeepNVMe's name)
    """An aio_handle that transfers GPU tensors by cuFile or by bounce buffers. CPU tensors are handled as by
    aio_handle.

    mode: "cufile" transfers whole blocks by cuFile, even in its compatibility mode. "bounce" uses page-locked buffers
    of weightfs, copied concurrently with other transfers. "auto" (the default, unless WEIGHTFS_GDS_MODE is set) uses
    cuFile for files that it accesses without a copy in host memory, and bounce buffers for all others. The attributes
    `mode` and `mode_reason` give the mode in use. Partial blocks at the ends of an operation always go through bounce
    buffers. So do operations that bypass a weightfs mount, because the host must verify their blocks; with mode
    "cufile" they go through the mount, which needs cuFile 1.16 or newer (CUDA 13.1).

    Raises RuntimeError without a GPU, and OSError if an explicitly requested mode is not available."""

    def __init__(self, block_size=1 << 20, queue_depth=128, single_submit=False, overlap_events=False,
                 intra_op_parallelism=None, *, num_threads=None, mode=None, direct="auto"):
        self._wanted = mode or os.environ.get("WEIGHTFS_GDS_MODE") or "auto"
        if self._wanted not in MODES:
            raise ValueError(f"mode is {self._wanted!r}: it must be one of {', '.join(MODES)}")
        self._pinned = {}   # address -> finalizer that unpins the tensor when it is gone
        super().__init__(block_size, queue_depth, single_submit, overlap_events, intra_op_parallelism,
                         num_threads=num_threads, direct=direct)
        self._gpu = self._native.gpu()
        log.info("gds_handle on %s: mode %s: %s", self._gpu["name"], self.mode, self.mode_reason)

    def _open(self, direct):
        try:
            return _native.Handle(*self._options, direct, self._wanted, find_cufile(), _tell_refusal)
        except OSError as error:
            if error.errno != errno.ENODEV:
                raise
            raise RuntimeError(f"weightfs: {error.strerror}; use aio_handle with CPU tensors") from error

    @property
    def mode(self):
        """The mode in use: "cufile" or "bounce"."""
        return self._gpu["mode"]

    @property
    def mode_reason(self):
        """The reason for the mode, as text."""
        return self._gpu["why"]

    @property
    def refusal(self):
        """In mode "auto": why the first operation that cuFile does not carry out goes through bounce buffers, as text,
        which is also logged once. Empty if all whole blocks went by cuFile so far."""
        return self._native.gpu()["refusal"]

    @property
    def gpu_bytes(self):
        """The number of bytes of GPU tensors transferred so far, by mode."""
        facts = self._native.gpu()
        return {"cufile": facts["cufile_bytes"], "bounce": facts["bounce_bytes"]}

    def new_pinned_device_tensor(self, num_elem, example_tensor):
        """Returns a pinned, uninitialized 1-D tensor of the example's type, on its GPU (for a CPU tensor: the current
        GPU)."""
        if not hasattr(example_tensor, "new_empty"):
            raise TypeError(f"example_tensor must be a tensor, not {type(example_tensor).__name__}")
        on_cpu = getattr(getattr(example_tensor, "device", None), "type", None) == "cpu"
        tensor = example_tensor.new_empty(operator.index(num_elem), **({"device": "cuda"} if on_cpu else {}))
        self._pin(tensor)
        return tensor

    def free_pinned_device_tensor(self, tensor):
        """Unpins a tensor. Returns False if it is not pinned. The memory is freed with the last tensor that uses it."""
        return self.unpin_device_tensor(tensor)

    def pin_device_tensor(self, tensor):
        """Prepares a contiguous GPU tensor for transfers of this handle, until it is unpinned or the last tensor that
        shares its memory is gone. If that is not possible, returns False and sets last_error."""
        with self._reporting():
            self._pin(tensor)
            return True
        return False

    def unpin_device_tensor(self, tensor):
        """Unpins a tensor. Returns False if it is not pinned."""
        address = self._device_memory(tensor).address
        unpin = self._pinned.pop(address, None)
        if unpin is not None:
            unpin.detach()
        return self._native.unpin(address)

    def is_pinned(self, buffer):
        """For a CPU tensor, as in aio_handle. For a GPU tensor or view: True if this handle pinned it."""
        memory = describe(buffer)
        if memory.on_device:
            return self._native.is_device_pinned(memory.arguments)
        return super().is_pinned(buffer)

    def _pin(self, tensor):
        memory = self._device_memory(tensor)
        if memory.nbytes == 0:
            return
        self._native.pin(memory.arguments)
        # The memory lives as long as any tensor that shares its storage.
        unpin = weakref.finalize(memory.owner, _forget, weakref.ref(self), memory.address)
        unpin.atexit = False
        self._pinned[memory.address] = unpin

    @staticmethod
    def _device_memory(tensor):
        memory = describe(tensor, writable=True)
        if memory.nbytes and not memory.on_device:
            raise ValueError(f"{memory.label} is not on a GPU")
        if memory.finish is not None:
            raise ValueError(f"{memory.label} is not contiguous: it cannot be pinned")
        return memory

    def __repr__(self):
        return f"{super().__repr__()[:-1]}, mode={self.mode})"


def _tell_refusal(why):
    log.warning("GPU transfers by bounce buffers: %s", why)


def _forget(handle, address):
    """Unpins the memory of a tensor that is gone. A closed handle has already unpinned it."""
    handle = handle()
    if handle is not None and handle._pinned.pop(address, None) is not None:
        with contextlib.suppress(ValueError, PermissionError):
            handle._native.unpin(address)
