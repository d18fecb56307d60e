# SPDX-License-Identifier: Apache-2.0
"""The functions of safetensors.torch: `from weightfs.safetensors.torch import load_file, save_file`."""

from weightfs.safetensors._open import load, load_file, load_model
from weightfs.safetensors._write import save, save_file, save_model

__all__ = ["load", "load_file", "load_model", "save", "save_file", "save_model"]
