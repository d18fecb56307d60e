# SPDX-License-Identifier: Apache-2.0
"""The builders in the place of those of deepspeed.ops.op_builder: there is nothing to build. install() puts them into
DeepSpeed, and main() runs programs with them."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from typing import Any

from weightfs._core.future import log
from weightfs.deepnvme._handles import aio_handle, gds_handle


class AsyncIOBuilder:
    """DeepSpeed's builder of the asynchronous I/O module."""

    BUILD_VAR, NAME, _KIND = "DS_BUILD_AIO", "async_io", aio_handle

    @property
    def name(self) -> str:
        return self.NAME

    def absolute_name(self) -> str:
        return __package__

    def is_compatible(self, verbose: bool = False) -> bool:
        """True if a handle can be created here. If `verbose`, prints the reason otherwise."""
        try:
            self._KIND(queue_depth=1).close()
        except (RuntimeError, OSError) as error:
            if verbose:
                print(f"weightfs: {self.NAME} cannot be used: {getattr(error, 'strerror', error)}", file=sys.stderr)
            return False
        return True

    def load(self, verbose: bool = True) -> Any:   # callers look its functions up by name
        return importlib.import_module(__package__)

    def jit_load(self, verbose: bool = True) -> Any:
        return self.load(verbose)

    def builder(self) -> AsyncIOBuilder:
        return self


class PinMemoryBuilder(AsyncIOBuilder):
    """DeepSpeed's builder for locked memory without I/O."""

    BUILD_VAR, NAME = "DS_BUILD_PIN_MEMORY", "pin_memory"

    def is_compatible(self, verbose: bool = False) -> bool:
        return True


class GDSBuilder(AsyncIOBuilder):
    """DeepSpeed's builder for GPUDirect Storage; not compatible without a GPU."""

    BUILD_VAR, NAME, _KIND = "DS_BUILD_GDS", "gds", gds_handle

    def load(self, verbose: bool = True) -> Any:
        """Returns the module. RuntimeError without a GPU."""
        gds_handle(queue_depth=1).close()
        return super().load(verbose)


_OURS = {builder.__name__: builder for builder in (AsyncIOBuilder, GDSBuilder, PinMemoryBuilder)}
_OLDEST = (0, 15)
_METHODS = ("get_op_builder", "create_op_builder")
_INSTALL = f"python -m pip install 'deepspeed>={_OLDEST[0]}.{_OLDEST[1]}'"

_theirs = {}   # (module name, attribute) -> DeepSpeed's builder
_undo = contextlib.ExitStack()   # restores the accelerator and the table of usable builders


def install() -> str:
    """Puts the builders of weightfs in place of DeepSpeed's, so that its swappers (ZeRO-3 with offload to NVMe,
    ZeRO-Inference) and FastFileWriter use handles of weightfs. Handles that DeepSpeed has created before stay. Child
    processes that are forked have them too; one that starts a new interpreter must call this function itself, or be
    started with `python -m weightfs.deepnvme`. Calling it again is harmless.

    Returns:
        A line that says what was replaced. The logger "weightfs" has it at INFO.

    Raises:
        ImportError: deepspeed is missing or older than 0.15."""
    version, accelerator = _load()
    first = not _theirs
    for module in _modules():
        for name, ours in _OURS.items():
            found = vars(module).get(name)
            if found is not None and found is not ours:
                _theirs[module.__name__, name] = found
                setattr(module, name, ours)
    if first:
        for method in _METHODS:
            setattr(accelerator, method, _looking_here_first(getattr(accelerator, method), method == _METHODS[1]))
            _undo.callback(delattr, accelerator, method)
        # Names of builders -> whether they can be used, which programs of DeepSpeed ask before they load one.
        table = getattr(importlib.import_module("deepspeed.ops"), "__compatible_ops__", {})
        _undo.callback(table.update, {one.NAME: table[one.NAME] for one in _OURS.values() if one.NAME in table})
        for builder in _OURS.values():
            _undo.callback(table.pop, builder.NAME, None)
            table[builder.NAME] = builder().is_compatible()
    modules = len({module for module, _ in _theirs})
    line = (f"weightfs.deepnvme: replaced {', '.join(_OURS)} of deepspeed {version} in {modules} modules and in the "
            f"accelerator {accelerator.device_name()}")
    log.info("%s", line)
    return line


def uninstall() -> str:
    """Restores DeepSpeed's builders everywhere. Returns a line that says so."""
    if not _theirs:
        return "weightfs.deepnvme: nothing is installed"
    for module in _modules():
        for name, ours in _OURS.items():
            if vars(module).get(name) is ours:
                # A module that was imported meanwhile took it from the package.
                setattr(module, name, _theirs.get((module.__name__, name), _theirs["deepspeed.ops.op_builder", name]))
    _undo.close()
    _theirs.clear()
    line = "weightfs.deepnvme: DeepSpeed's own builders are back"
    log.info("%s", line)
    return line


def _load():
    """Returns (DeepSpeed's version, its accelerator). ImportError if there is none, or an old one."""
    try:
        package = importlib.import_module("deepspeed")
    except ModuleNotFoundError as error:
        if error.name != "deepspeed":
            raise
        raise ImportError(f"deepspeed is not installed: {_INSTALL}") from None
    version = getattr(package, "__version__", "unknown")
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    try:
        builders = importlib.import_module("deepspeed.ops.op_builder")
        accelerator = importlib.import_module("deepspeed.accelerator").get_accelerator()
        complete = all(hasattr(builders, name) for name in ("AsyncIOBuilder", "GDSBuilder"))
    except ModuleNotFoundError:
        complete = False
    if not complete or numbers < _OLDEST:
        raise ImportError(f"deepspeed {version} is too old: it must be {_OLDEST[0]}.{_OLDEST[1]} or newer; {_INSTALL}")
    return version, accelerator


def _modules():
    """DeepSpeed's modules that are imported. Others will take the builders from deepspeed.ops.op_builder."""
    return [module for name, module in list(sys.modules.items())
            if name.partition(".")[0] in ("deepspeed", "op_builder") and hasattr(module, "__dict__")]


def _looking_here_first(method, makes_one):
    def lookup(class_name):
        ours = _OURS.get(class_name)
        return method(class_name) if ours is None else ours() if makes_one else ours
    return lookup


def main(words):
    """python -m weightfs.deepnvme SCRIPT ARGS, or -m MODULE ARGS. Returns the exit status for wrong arguments."""
    local_rank = [words.pop(0)] if words and words[0].startswith("--local_rank=") else []
    as_module = words[:1] == ["-m"]
    words = words[1:] if as_module else words
    if not words or words[0].startswith("-"):
        print("usage: python -m weightfs.deepnvme SCRIPT ARGS... | -m MODULE ARGS...\n"
              "Runs a program of DeepSpeed with the I/O of weightfs.", file=sys.stderr)
        return 0 if words[:1] in (["-h"], ["--help"]) else 2
    try:
        print(install(), file=sys.stderr, flush=True)
    except ImportError as error:
        print(f"weightfs.deepnvme: {error}", file=sys.stderr)
        return 2
    # The launcher of DeepSpeed puts --local_rank in front of the script, which expects it among its own arguments.
    sys.argv = [words[0], *local_rank, *words[1:]]
    sys.path.insert(0, os.getcwd() if as_module else os.path.dirname(os.path.abspath(words[0])))
    import runpy
    if as_module:
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(words[0], run_name="__main__")
    return 0
