# SPDX-License-Identifier: Apache-2.0
"""Puts weightfs in the place of the safetensors package in programs that import it, such as transformers, accelerate,
diffusers and peft.

    import weightfs.hf

    weightfs.hf.install()
    model = transformers.AutoModel.from_pretrained("/mnt/tensors/model")

From then on `safe_open`, `load_file` and `save_file` use a handle for files on a weightfs mount, in all modules that
are or will be imported. Other files, frameworks and devices stay with the safetensors package."""

from __future__ import annotations

import os
import sys
import types
from typing import TYPE_CHECKING, Any

from weightfs._core.torch import torch  # first, because it explains a missing one

import safetensors.torch

from weightfs import safetensors as ours
from weightfs._core import process
from weightfs._core.files import on_mount
from weightfs.safetensors._files import device_of
from weightfs.safetensors._open import FRAMEWORKS

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Installation", "install", "uninstall"]

_theirs: dict[str, Any] = {}          # what was in place before, also while nothing is installed
_holders: set[Installation] = set()   # what keeps the functions in place; guarded by process.lock


class _Opened(type):
    """Programs may ask whether an object is a safe_open."""

    def __instancecheck__(cls, opened):
        return isinstance(opened, (ours.SafeOpen, _theirs["safe_open"]))


class safe_open(metaclass=_Opened):   # noqa: N801  (the name that programs know)
    def __new__(cls, *arguments, **options):
        return (ours.safe_open if _reads(*arguments, **options) else _theirs["safe_open"])(*arguments, **options)


def load_file(filename, device="cpu", **options):
    load = ours.load_file if _reads(filename, "pt", device, **options) else _theirs["load_file"]
    return load(filename, device, **options)


def save_file(tensors, filename, metadata=None, **options):
    save = ours.save_file if not options and _writes(tensors, filename) else _theirs["save_file"]
    return save(tensors, filename, metadata, **options)


def _reads(filename=None, framework=None, device="cpu", *others, **options):
    """Whether a handle reads this file. The safetensors package knows one file only, no directory and no index."""
    if not _holders or framework not in FRAMEWORKS or others or options.keys() - {"backend"}:
        return False
    try:
        device_of(device)
    except (TypeError, ValueError):
        return False
    return _is_path(filename) and os.path.isfile(filename) and on_mount(filename)


def _writes(tensors, filename):
    """Whether a handle writes this file. The package raises its own error for a tensor that it does not save."""
    return (bool(_holders) and isinstance(tensors, dict) and all(map(_is_saved, tensors.values()))
            and _is_path(filename) and on_mount(filename))


def _is_saved(tensor):
    return (isinstance(tensor, torch.Tensor) and tensor.layout == torch.strided and tensor.is_contiguous()
            and tensor.device.type in ("cpu", "cuda"))


def _is_path(filename):
    return isinstance(filename, (str, os.PathLike)) and not os.fsdecode(filename).endswith(".json")


_OURS = {"safe_open": safe_open, "load_file": load_file, "save_file": save_file}


def _replace(pairs):
    """Replaces the first of each pair by the second, under every name that a module has for it."""
    found = {id(old): new for old, new in pairs}
    for key, module in sys.modules.copy().items():
        if isinstance(module, types.ModuleType) and key.partition(".")[0] != "weightfs":
            for name, value in vars(module).copy().items():
                if id(value) in found:
                    vars(module)[name] = found[id(value)]


class Installation:
    """What install() returns: a context manager that ends the installation with the block, unless it was there before,
    or another block needs it."""

    def __enter__(self) -> Self:
        with process.lock:
            self._hold()
        return self

    def __exit__(self, *_: object) -> None:
        with process.lock:
            _holders.discard(self)
            if not _holders:
                uninstall()

    def _hold(self):
        if not _holders:
            _theirs.update(safe_open=safetensors.safe_open, load_file=safetensors.torch.load_file,
                           save_file=safetensors.torch.save_file)
            _replace((theirs, _OURS[name]) for name, theirs in _theirs.items())
        _holders.add(self)


def install() -> Installation:
    """Puts the functions in place until uninstall() or the end of a `with` block with what this
    returns. Thread-safe."""
    with process.lock:
        made = Installation()
        made._hold()
        return made


def uninstall() -> None:
    """Puts back what was there, also in modules that were imported since. Open files stay usable. Thread-safe."""
    with process.lock:
        _holders.clear()
        _replace((_OURS[name], theirs) for name, theirs in _theirs.items())
