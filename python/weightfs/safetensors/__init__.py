# SPDX-License-Identifier: Apache-2.0
"""Saves and loads torch tensors in the safetensors format through a handle. The bytes are those that
safetensors.torch.save_file writes.

    import weightfs.safetensors

    weightfs.safetensors.save_file({"w": w}, "/mnt/tensors/model.safetensors")
    tensors = weightfs.safetensors.load_file("/mnt/tensors/model.safetensors")

    with weightfs.safetensors.open("/mnt/tensors/model") as model:      # a file, a directory of shards or an index
        rows = model.get_slice("w")[100:200]                            # reads these rows alone

    for name, tensor in weightfs.safetensors.stream("/mnt/tensors/model", memory="1G"):
        ...                                                             # models larger than memory

The safetensors package is not needed. Programs that import it can import `weightfs.safetensors` in its place: safe_open
and SafetensorError from here, the functions of safetensors.torch and safetensors.numpy from the modules
weightfs.safetensors.torch and weightfs.safetensors.numpy. docs/SAFETENSORS.md has the calls that this covers."""

from __future__ import annotations

from collections.abc import Iterable

import weightfs._core.torch  # noqa: F401  (first, because it explains a missing one)
from weightfs._core.handle import Handle
from weightfs._core.types import Files
from weightfs.safetensors._files import Device
from weightfs.safetensors._format import SafetensorError
from weightfs.safetensors._open import SafeOpen, SafeSlice, load, load_file, load_model
from weightfs.safetensors._reads import TensorStream
from weightfs.safetensors._write import FileWriter, create_file, save, save_file, save_model

__all__ = ["FileWriter", "SafeOpen", "SafeSlice", "SafetensorError", "TensorStream", "create_file", "load", "load_file",
           "load_model", "open", "safe_open", "save", "save_file", "save_model", "stream"]


def open(filename: Files, framework: str = "pt", device: Device = "cpu", *, backend: str = "mmap",
         handle: Handle | None = None) -> SafeOpen:
    """Opens files lazily, as safetensors.safe_open does: a tensor is read when it is asked for. Also named safe_open.

    Args:
        filename: a file, a directory of shards (with model.safetensors.index.json, or all files NAME.safetensors), an
            index (NAME.json), or a list of these.
        framework: "pt" for tensors of torch, "np" for arrays of numpy.
        device: "cpu", or for tensors a CUDA GPU ("cuda:0").
        backend: "mmap" or "pread", without effect: a handle reads the files.
        handle: reads the tensors; None, and in a forked child: the handle of the process.

    Returns:
        a SafeOpen.

    Raises:
        SafetensorError (also a ValueError): a header is damaged, two files have a tensor of one name, or an argument is
            not supported.
        OSError: a file cannot be opened."""
    return SafeOpen(filename, framework, device, backend=backend, handle=handle)


safe_open = open


def stream(files: Files, memory: int | str = "1G", concurrency: int = 4, device: Device = "cpu",
           names: Iterable[str] | None = None, *, handle: Handle | None = None) -> TensorStream:
    """Iterates over the tensors of files, in the order of the files and of the offsets in them, with several reads
    under way.

    Args:
        files: as filename in open().
        memory: bytes, or a text such as "512M": the bound of what is under way and not yet yielded. A larger tensor is
            read alone. Tensors that were yielded belong to the program and do not count.
        concurrency: the most reads under way. Small neighbours in a file are one read.
        device, handle: as in open().
        names: the tensors to read; by default all. SafetensorError (also a KeyError) if no file has one of them.

    Returns:
        a TensorStream, an iterator of (name, tensor). Its close(), also at the end of a with block, cancels what is
        under way and waits for it.

    Raises:
        SafetensorError, OSError: as open(). A read that fails raises OSError in its place of the iteration, which then
        ends."""
    return TensorStream(files, memory, concurrency, device, names, handle=handle)
