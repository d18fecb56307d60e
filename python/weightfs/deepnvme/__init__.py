# SPDX-License-Identifier: Apache-2.0
"""What DeepNVMe programs import from deepspeed.ops.op_builder, and the functions of its native module.

    from weightfs.deepnvme import AsyncIOBuilder
    handle = AsyncIOBuilder().load().aio_handle(1 << 20, 128, False, True, 2)

load() compiles nothing: it returns this module.

install() makes DeepSpeed itself use these builders, and `python -m weightfs.deepnvme train.py ARGS` runs a program that
nobody may edit with them."""

from __future__ import annotations

from typing import Any

from weightfs import _native
from weightfs._core.memory import describe
from weightfs.deepnvme._deepspeed import AsyncIOBuilder, GDSBuilder, PinMemoryBuilder, install, uninstall
from weightfs.deepnvme._handles import aio_handle, gds_handle, pin_handle

__all__ = ["AsyncIOBuilder", "GDSBuilder", "PinMemoryBuilder", "aio_handle", "aio_read", "aio_write",
           "deepspeed_memcpy", "gds_handle", "install", "pin_handle", "uninstall"]


def aio_read(buffer: Any, filename: str, block_size: int, queue_depth: int, single_submit: bool, overlap_events: bool,
             validate: bool) -> int:
    """Reads a file of exactly the buffer's size with a temporary handle. Returns 0 or -1."""
    with aio_handle(block_size, queue_depth, single_submit, overlap_events) as handle:
        return handle.read(buffer, filename, validate)


def aio_write(buffer: Any, filename: str, block_size: int, queue_depth: int, single_submit: bool, overlap_events: bool,
              validate: bool) -> int:
    """Writes a file with a temporary handle. Returns 0 or -1."""
    with aio_handle(block_size, queue_depth, single_submit, overlap_events) as handle:
        return handle.write(buffer, filename, validate)


def deepspeed_memcpy(dest: Any, src: Any) -> int:
    """Copies the elements of `src` to `dest` in row-major order. The sizes must be equal. Returns 0."""
    target, source = describe(dest, writable=True), describe(src)
    if target.nbytes != source.nbytes:
        raise ValueError(f"{source.label} does not fit into {target.label}")
    _native.copy(target.arguments, source.arguments)
    return 0
