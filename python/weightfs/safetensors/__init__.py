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

import weightfs._core.torch  # noqa: F401  (first, because it explains a missing one)
from weightfs.safetensors._format import SafetensorError
from weightfs.safetensors._open import SafeOpen, SafeSlice, load, load_file, load_model
from weightfs.safetensors._reads import TensorStream
from weightfs.safetensors._write import FileWriter, create_file, save, save_file, save_model

__all__ = ["FileWriter", "SafeOpen", "SafeSlice", "SafetensorError", "TensorStream", "create_file", "load", "load_file",
           "load_model", "open", "safe_open", "save", "save_file", "save_model", "stream"]

open = safe_open = SafeOpen
stream = TensorStream
