from os import PathLike
from typing import Any

from weightfs import aio_handle

_Path = str | bytes | PathLike[str] | PathLike[bytes]

# The options are those of torch.save and torch.load.
def save(obj: object, path: _Path, *, handle: aio_handle | None = None, durable: bool = False, atomic: bool = True,
         storage_alignment: int | None = None, crc32: bool = True, **options: Any) -> None: ...
def load(path: _Path, *, handle: aio_handle | None = None, **options: Any) -> Any: ...
