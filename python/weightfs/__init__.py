# SPDX-License-Identifier: Apache-2.0
"""Tensors between memory and files at the speed of the device.

    import torch, weightfs

    handle = weightfs.Handle(intra_op_parallelism=2)
    handle.write_from(torch.randn(4096, 4096), "/mnt/tensors/w")
    future = handle.read_async(tensor, "/mnt/tensors/w")                # result(), await, cancel()

    with weightfs.reader("/mnt/tensors/table.bin") as table:            # many small reads of one file
        table.rows([3, 70_000, 12], torch.empty(3, 128))

    weightfs.publish("/mnt/tensors/step-1000")                          # complete, durable, immutable

weightfs.deepnvme has DeepNVMe's handles and builders; weightfs.torch and weightfs.safetensors save and load whole
checkpoints."""

from weightfs._core.file import open
from weightfs._core.future import Future
from weightfs._core.handle import Handle
from weightfs._core.memory import is_pinned
from weightfs._core.publish import Publication, publication, publish, unpublish
from weightfs._core.reader import reader
from weightfs._native import __version__
from weightfs.deepnvme._handles import aio_handle, gds_handle

__all__ = ["Future", "Handle", "Publication", "__version__", "aio_handle", "gds_handle", "is_pinned", "open",
           "publication", "publish", "reader", "unpublish"]
