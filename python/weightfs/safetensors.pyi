# SPDX-License-Identifier: Apache-2.0
from collections.abc import Mapping
from os import PathLike

import torch

from weightfs import aio_handle

_Path = str | bytes | PathLike[str] | PathLike[bytes]

def save_file(tensors: Mapping[str, torch.Tensor], filename: _Path, metadata: Mapping[str, str] | None = None, *,
              handle: aio_handle | None = None, durable: bool = False, atomic: bool = True) -> None: ...
def save_model(model: torch.nn.Module, filename: _Path, metadata: Mapping[str, str] | None = None,
               force_contiguous: bool = True, *, handle: aio_handle | None = None, durable: bool = False,
               atomic: bool = True) -> None: ...
def load_model(model: torch.nn.Module, filename: _Path, strict: bool = True, device: str | torch.device | int = "cpu",
               *, handle: aio_handle | None = None) -> tuple[set[str], list[str]]: ...
def load_file(filename: _Path, device: str | torch.device | int = "cpu", *,
              handle: aio_handle | None = None) -> dict[str, torch.Tensor]: ...
