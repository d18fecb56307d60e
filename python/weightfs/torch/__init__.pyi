# SPDX-License-Identifier: Apache-2.0
from contextlib import AbstractContextManager
from os import PathLike
from typing import IO, Any, Literal

from weightfs import Handle

_File = str | bytes | PathLike[str] | PathLike[bytes] | IO[bytes]
_Direct = Literal["auto", "never", "require"]

# `arguments` and `options` are those of torch.save and torch.load.
def save(obj: object, f: _File, *arguments: Any, handle: Handle | None = None, direct: _Direct = "auto",
         durable: bool = False, atomic: bool = True, storage_alignment: int | None = None, crc32: bool = True,
         **options: Any) -> None: ...
def load(f: _File, map_location: Any = None, *arguments: Any, handle: Handle | None = None,
         direct: _Direct = "auto", **options: Any) -> Any: ...
def without_crc32() -> AbstractContextManager[Any]: ...
