# SPDX-License-Identifier: Apache-2.0
from collections.abc import Mapping
from typing import Any

from weightfs import Handle
from weightfs.safetensors import _Direct, _Files, _Path

__all__ = ["load", "load_file", "save", "save_file"]

def save_file(tensor_dict: Mapping[str, Any], filename: _Path, metadata: Mapping[str, str] | None = None, *,
              handle: Handle | None = None, durable: bool = False, atomic: bool = True,
              align: int | None = None, direct: _Direct = "auto") -> None: ...
def save(tensor_dict: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> bytes: ...
def load_file(filename: _Files, *, backend: str = "mmap", handle: Handle | None = None,
              direct: _Direct = "auto") -> dict[str, Any]: ...
def load(data: bytes | bytearray | memoryview) -> dict[str, Any]: ...
