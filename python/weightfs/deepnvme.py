# SPDX-License-Identifier: Apache-2.0
"""What programs for DeepNVMe import from deepspeed.ops.op_builder, and the functions of its native module.

    from weightfs.deepnvme import AsyncIOBuilder
    handle = AsyncIOBuilder().load().aio_handle(1 << 20, 128, False, True, 2)

Nothing is compiled when load() is called: it returns this module."""

import sys

from weightfs import _native
from weightfs._gds import gds_handle
from weightfs._handle import aio_handle
from weightfs._memory import describe
from weightfs._pin import pin_handle

__all__ = ["AsyncIOBuilder", "GDSBuilder", "PinMemoryBuilder", "aio_handle", "aio_read", "aio_write",
           "deepspeed_memcpy", "gds_handle", "pin_handle"]


def aio_read(buffer, filename, block_size, queue_depth, single_submit, overlap_events, validate):
    """Reads a file of exactly the buffer's size with a handle of its own; 0 or -1."""
    with aio_handle(block_size, queue_depth, single_submit, overlap_events) as handle:
        return handle.read(buffer, filename, validate)


def aio_write(buffer, filename, block_size, queue_depth, single_submit, overlap_events, validate):
    """Writes a file with a handle of its own; 0 or -1."""
    with aio_handle(block_size, queue_depth, single_submit, overlap_events) as handle:
        return handle.write(buffer, filename, validate)


def deepspeed_memcpy(dest, src):
    """Copies the elements of `src` into `dest`, in row-major order of their indices; 0. Sizes must be equal."""
    target, source = describe(dest, writable=True), describe(src)
    if target.nbytes != source.nbytes:
        raise ValueError(f"{source.label} does not fit into {target.label}")
    _native.copy(target.arguments, source.arguments)
    return 0


class AsyncIOBuilder:
    """DeepSpeed's builder of the asynchronous I/O module, with nothing to build."""

    BUILD_VAR, NAME = "DS_BUILD_AIO", "async_io"

    def absolute_name(self):
        return __name__

    def is_compatible(self, verbose=False):
        """Whether a handle can be made here; says why not if `verbose`."""
        try:
            aio_handle(queue_depth=1).close()
        except OSError as error:
            if verbose:
                print(f"weightfs: asynchronous I/O cannot be used: {error.strerror}", file=sys.stderr)
            return False
        return True

    def load(self, verbose=True):
        return sys.modules[__name__]

    def jit_load(self, verbose=True):
        return self.load(verbose)

    def builder(self):
        return self


class PinMemoryBuilder(AsyncIOBuilder):
    """DeepSpeed's builder of locked memory without I/O."""

    BUILD_VAR, NAME = "DS_BUILD_PIN_MEMORY", "pin_memory"

    def is_compatible(self, verbose=False):
        return True


class GDSBuilder(AsyncIOBuilder):
    """DeepSpeed's builder of GPUDirect Storage: not compatible without a GPU."""

    BUILD_VAR, NAME = "DS_BUILD_GDS", "gds"

    def is_compatible(self, verbose=False):
        """Whether a gds_handle can be made here; says why not if `verbose`."""
        try:
            gds_handle(queue_depth=1).close()
        except (RuntimeError, OSError) as error:
            if verbose:
                print(f"weightfs: GPUDirect Storage cannot be used: {error}", file=sys.stderr)
            return False
        return True

    def load(self, verbose=True):
        """This module; RuntimeError without a GPU."""
        gds_handle(queue_depth=1).close()
        return super().load(verbose)
