# SPDX-License-Identifier: Apache-2.0
"""What DeepNVMe programs import from deepspeed.ops.op_builder, and the functions of its native module.

    from weightfs.deepnvme import AsyncIOBuilder
    handle = AsyncIOBuilder().load().aio_handle(1 << 20, 128, False, True, 2)

load() compiles nothing: it returns this module.

install() makes DeepSpeed itself use these builders, and `python -m weightfs.deepnvme train.py ARGS` runs a program that
nobody may edit with them."""

import sys

from weightfs import _native
from weightfs._gds import gds_handle
from weightfs._handle import aio_handle
from weightfs._memory import describe
from weightfs._pin import pin_handle

__all__ = ["AsyncIOBuilder", "GDSBuilder", "PinMemoryBuilder", "aio_handle", "aio_read", "aio_write",
           "deepspeed_memcpy", "gds_handle", "install", "pin_handle", "uninstall"]


def install():
    """Puts the builders of this module in place of DeepSpeed's, so that its swappers (ZeRO-3 with offload to NVMe,
    ZeRO-Inference) and FastFileWriter use handles of weightfs. Handles that DeepSpeed has created before stay. Child
    processes that are forked have them too; one that starts a new interpreter must call this function itself, or be
    started with `python -m weightfs.deepnvme`. Calling it again is harmless.

    Returns:
        A line that says what was replaced. The logger "weightfs" has it at INFO.

    Raises:
        ImportError: deepspeed is missing or older than 0.15."""
    from weightfs._deepspeed import install as replace
    return replace()


def uninstall():
    """Restores DeepSpeed's builders everywhere. Returns a line that says so."""
    from weightfs._deepspeed import uninstall as restore
    return restore()


def aio_read(buffer, filename, block_size, queue_depth, single_submit, overlap_events, validate):
    """Reads a file of exactly the buffer's size with a temporary handle. Returns 0 or -1."""
    with aio_handle(block_size, queue_depth, single_submit, overlap_events) as handle:
        return handle.read(buffer, filename, validate)


def aio_write(buffer, filename, block_size, queue_depth, single_submit, overlap_events, validate):
    """Writes a file with a temporary handle. Returns 0 or -1."""
    with aio_handle(block_size, queue_depth, single_submit, overlap_events) as handle:
        return handle.write(buffer, filename, validate)


def deepspeed_memcpy(dest, src):
    """Copies the elements of `src` to `dest` in row-major order. The sizes must be equal. Returns 0."""
    target, source = describe(dest, writable=True), describe(src)
    if target.nbytes != source.nbytes:
        raise ValueError(f"{source.label} does not fit into {target.label}")
    _native.copy(target.arguments, source.arguments)
    return 0


class AsyncIOBuilder:
    """DeepSpeed's builder of the asynchronous I/O module. There is nothing to build."""

    BUILD_VAR, NAME = "DS_BUILD_AIO", "async_io"

    @property
    def name(self):
        return self.NAME

    def absolute_name(self):
        return __name__

    def is_compatible(self, verbose=False):
        """True if a handle can be created here. If `verbose`, prints the reason otherwise."""
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
    """DeepSpeed's builder for locked memory without I/O."""

    BUILD_VAR, NAME = "DS_BUILD_PIN_MEMORY", "pin_memory"

    def is_compatible(self, verbose=False):
        return True


class GDSBuilder(AsyncIOBuilder):
    """DeepSpeed's builder for GPUDirect Storage; not compatible without a GPU."""

    BUILD_VAR, NAME = "DS_BUILD_GDS", "gds"

    def is_compatible(self, verbose=False):
        """True if a gds_handle can be created here. If `verbose`, prints the reason otherwise."""
        try:
            gds_handle(queue_depth=1).close()
        except (RuntimeError, OSError) as error:
            if verbose:
                print(f"weightfs: GPUDirect Storage cannot be used: {error}", file=sys.stderr)
            return False
        return True

    def load(self, verbose=True):
        """Returns this module. RuntimeError without a GPU."""
        gds_handle(queue_depth=1).close()
        return super().load(verbose)


if __name__ == "__main__":
    # This copy of the module is not the one that programs import.
    from weightfs._deepspeed import main
    sys.exit(main(sys.argv[1:]))
