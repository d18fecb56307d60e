# SPDX-License-Identifier: Apache-2.0
"""A plugin of Lightning that saves and loads checkpoints through a handle.

    from weightfs.lightning import CheckpointIO

    trainer = lightning.Trainer(plugins=[CheckpointIO()])

AsyncCheckpointIO(CheckpointIO()) of Lightning saves them in the background."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from weightfs._core.torch import torch  # noqa: F401  (first, because it explains a missing one)

import weightfs.torch
from weightfs._core.files import check_mounted, make_folder
from weightfs._core.handle import Handle, chosen
from weightfs._core.types import Direct, Path

__all__ = ["CheckpointIO"]


def _interfaces():
    """The plugin of each installed package: `lightning` and `pytorch_lightning` accept only their own."""
    for name in ("lightning.fabric.plugins", "lightning_fabric.plugins"):
        try:
            yield importlib.import_module(name).TorchCheckpointIO
        except ModuleNotFoundError as error:
            if not name.startswith(str(error.name)):
                raise


_INTERFACES = tuple(_interfaces())
if not _INTERFACES:
    raise ModuleNotFoundError("this part of weightfs needs Lightning, which is not installed: pip install lightning",
                              name="lightning")


class CheckpointIO(*_INTERFACES):
    """Saves files by weightfs.torch.save, atomically, and loads them by weightfs.torch.load. torch.load and Lightning's
    own plugin read them, too. Checkpoints at a URL such as s3://… are those of Lightning's own plugin."""

    def __init__(self, *, durable: bool = True, handle: Handle | None = None, direct: Direct = "auto") -> None:
        """durable, handle, direct: as in weightfs.torch.save."""
        super().__init__()
        self._chosen = chosen(handle, direct)
        self._durable, self._used = durable, {"handle": handle, "direct": direct}

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Path,
                        storage_options: Mapping[str, Any] | None = None) -> None:
        """Saves a checkpoint, and creates the directories that are missing. storage_options: further arguments of
        weightfs.torch.save, such as {"durable": False}. Raises OSError."""
        file = _local(path)
        if file is None:
            return super().save_checkpoint(checkpoint, path, storage_options)
        check_mounted(file, self._chosen)
        make_folder(file.rpartition("/")[0] or "/")
        weightfs.torch.save(checkpoint, file, **{"durable": self._durable, **self._used, **(storage_options or {})})

    def load_checkpoint(self, path: Path, map_location: Any = lambda storage, location: storage,
                        weights_only: bool | None = None) -> dict[str, Any]:
        """Loads a checkpoint, to the CPU by default. weights_only: as in torch.load. Raises OSError.

        The memory is the program's own: optimizers change their states in place, and would copy shared memory."""
        file = _local(path)
        if file is None:
            return super().load_checkpoint(path, map_location, weights_only)
        return weightfs.torch.load(file, map_location, weights_only=weights_only, mmap=False, **self._used)


def _local(path):
    """The absolute path of a file of this machine; None for another URL."""
    from fsspec.core import url_to_fs
    from fsspec.implementations.local import LocalFileSystem
    system, file = url_to_fs(str(path))
    return file if isinstance(system, LocalFileSystem) else None
