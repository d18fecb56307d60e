# SPDX-License-Identifier: Apache-2.0
"""The functions of safetensors.numpy: `from weightfs.safetensors.numpy import load_file, save_file`. Arrays that are
not contiguous are saved in row-major order. Types that numpy lacks, such as bfloat16, need the package ml_dtypes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weightfs._core.handle import Handle, chosen
from weightfs._core.types import Direct, Files, Path
from weightfs.safetensors import _open
from weightfs.safetensors._format import SafetensorValueError
from weightfs.safetensors._memory import check_array, to_numpy
from weightfs.safetensors._write import join, write_file

__all__ = ["load", "load_file", "save", "save_file"]


def save_file(tensor_dict: Mapping[str, Any], filename: Path, metadata: Mapping[str, str] | None = None, *,
              handle: Handle | None = None, durable: bool = False, atomic: bool = True, align: int | None = None,
              direct: Direct = "auto") -> None:
    """Saves a dict of names and arrays as weightfs.safetensors.save_file saves tensors.

    Raises:
        SafetensorError, TypeError: an argument that the format cannot store.
        OSError: the file cannot be written."""
    write_file(*_checked(tensor_dict), filename, metadata, chosen(handle, direct), durable, atomic, align)


def save(tensor_dict: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> bytes:
    """Returns the bytes of the file that save_file writes."""
    return join(*_checked(tensor_dict), metadata)


def load_file(filename: Files, *, backend: str = "mmap", handle: Handle | None = None,
              direct: Direct = "auto") -> dict[str, Any]:
    """Returns a dict of names and arrays; see weightfs.safetensors.load_file. TypeError if numpy does not have the type
    of one."""
    with _open.SafeOpen(filename, "np", backend=backend, handle=chosen(handle, direct)) as model:
        return model.get_tensors()


def load(data: bytes | bytearray | memoryview) -> dict[str, Any]:
    """Like load_file, from the bytes of a file."""
    return {name: to_numpy(tensor) for name, tensor in _open.load(data).items()}


def _checked(arrays):
    """Returns (name -> array, name -> (dtype, shape) as of torch)."""
    if not hasattr(arrays, "items"):
        raise SafetensorValueError(f"expected a dict of names and arrays, not {type(arrays).__name__}")
    found = {name: check_array(name, array) for name, array in arrays.items()}
    return ({name: array for name, (array, _) in found.items()},
            {name: (dtype, array.shape) for name, (array, dtype) in found.items()})
