# SPDX-License-Identifier: Apache-2.0
"""Tensors between memory and files at the speed of the device.

    import torch, weightfs

    handle = weightfs.aio_handle(intra_op_parallelism=2)
    handle.sync_pwrite(torch.randn(4096, 4096), "/mnt/tensors/w")       # DeepNVMe's methods
    future = handle.read_async(tensor, "/mnt/tensors/w")                # or futures: result(), await, cancel()

    with weightfs.reader("/mnt/tensors/table.bin") as table:            # many small reads of one file
        table.rows([3, 70_000, 12], torch.empty(3, 128))

    weightfs.publish("/mnt/tensors/step-1000")                          # complete, durable, immutable

weightfs.deepnvme has DeepNVMe's builders; weightfs.torch and weightfs.safetensors save and load whole checkpoints."""

from weightfs._future import Future
from weightfs._gds import gds_handle
from weightfs._handle import aio_handle, is_pinned
from weightfs._native import __version__
from weightfs._publish import Publication, publication, publish, unpublish
from weightfs._reader import reader

__all__ = ["Future", "Publication", "__version__", "aio_handle", "gds_handle", "is_pinned", "publication", "publish",
           "reader", "unpublish"]
