# SPDX-License-Identifier: Apache-2.0
"""Modules of torch that are larger than memory: their tensors, gradients and optimizer states are in files, and pass
through one buffer of a fixed size, read ahead in the order of their use.

    import weightfs.offload

    model = weightfs.offload.offload(model, "/mnt/tensors/run", memory="2G")
    optimizer = weightfs.offload.AdamW(model, lr=1e-4)       # for training
    model(batch).sum().backward()
    optimizer.step()

docs/OFFLOAD.md says what is kept in memory and what a killed program leaves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from weightfs._core.torch import torch  # first, because it explains a missing one

from weightfs._core.arguments import bytes_from
from weightfs._core.types import Files, Path
from weightfs.offload._adam import Adam, AdamW
from weightfs.offload._store import Stats
from weightfs.offload._training import Offloaded

__all__ = ["Adam", "AdamW", "Stats", "close", "offload", "restore", "tensors"]
_Module = TypeVar("_Module", bound=torch.nn.Module)


def offload(module: _Module, directory: Path, memory: int | str = "2G", *,
            blocks: Iterable[str | torch.nn.Module] | None = None, source: Files | None = None, resume: bool = False,
            device: str | torch.device = "cpu", durable: bool = True) -> _Module:
    """Moves the parameters and buffers of a module to files. A block's tensors are in memory while its forward, or its
    backward, runs; in between, `module` has placeholders, which raise if anything else uses them. Backward computes
    each block's forward again (as torch.utils.checkpoint does).

    Not thread-safe: one thread at a time uses the module and its optimizer; another one gets RuntimeError.

    Args:
        module: any torch.nn.Module. Parameters may be on the meta device if `source` or the directory has them.
        directory: is created if its parent exists. It belongs to this module alone.
        memory: bytes of the buffer, or a text such as "512M" or "2G". It is allocated at once and locked. It holds all
            tensors, gradients and optimizer states that are in memory; only activations, the gradients of the block
            whose backward runs, and a copy of the buffers of the running block are torch's own.
        blocks: submodules or their names that are read and run as a whole. Default: the elements of the ModuleList or
            Sequential that divides the module best. Other submodules of at least 1 MiB are blocks too; smaller tensors
            beside the blocks stay in memory.
        source: a safetensors file, several, or a directory with some. Their tensors replace those of the module.
        resume: continue with the content of the directory at its last committed step, if it has any.
        device: where the buffer is and the module runs.
        durable: each commit survives a power loss. Otherwise it survives a kill of the program.

    Returns:
        The module. `module.offload_stats` counts bytes and seconds (Stats).

    Raises:
        MemoryError: `memory` does not hold the tensors of one block.
        FileExistsError: the directory has an offloaded module, and resume is False.
        BlockingIOError: another program uses the directory.
        ValueError: the directory has another module, is damaged, or an argument is impossible.
        OSError: a file cannot be read or written. The module and an existing content of the directory are unchanged."""
    if hasattr(module, "_weightfs_offload"):
        raise ValueError("the module is offloaded already: call weightfs.offload.restore() or close() first")
    nbytes = bytes_from("memory", memory, 1 << 16) >> 12 << 12
    store = Offloaded(module, directory, nbytes, blocks, resume, torch.device(device), durable)
    try:
        store.open(module, source)
    except BaseException:
        store.release()
        raise
    module._weightfs_offload, module.offload_stats = store, store.cache.stats
    return module


def tensors(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields (name, tensor) of an offloaded module, block by block. Each tensor is a copy. A tensor with several names
    is yielded for each of them.

    Raises:
        RuntimeError: the last step failed.
        OSError: a file cannot be read."""
    store = module._weightfs_offload
    with store.exclusive():
        store.check()
        store.take_resident_changes()
    for group in store.groups:
        with store.exclusive(), store.cache.acquired([group.entry], learn=False):
            copies = [view.clone() for view in group.layout.views(store.cache.view(group.entry))]
        for member, copy in zip(group.members, copies):
            for name in member.names:
                yield name, copy


def restore(module: torch.nn.Module) -> None:
    """Brings all tensors back into ordinary memory, as new Parameters, and ends the offload. The files stay.

    Raises:
        RuntimeError: the last step failed. The module is unchanged; call close().
        OSError: a file cannot be read, and the module is unchanged; or changed buffers cannot be committed to the
            directory, and the module has all its tensors."""
    loaded = dict(tensors(module))
    store = module._weightfs_offload
    trainable = {group.members[index].name for group in store.groups for index in group.trainable}
    try:
        close(module)
    finally:
        for member in (member for group in store.groups for member in group.members):
            tensor = loaded[member.name]
            made = torch.nn.Parameter(tensor, member.name in trainable) if member.is_parameter else tensor
            vars(made).update(member.attributes())
            member.bind(made)


def close(module: torch.nn.Module) -> None:
    """Commits changed buffers (such as running means) and ends the offload: the module then has placeholders, and
    its forward raises. offload(..., resume=True) continues, also with a new module of the same kind. After a failed
    step nothing is committed."""
    store = module._weightfs_offload
    with store.exclusive():
        try:
            if store.failure is None:
                store.commit()
        finally:
            try:
                store.remove()
            finally:
                del module._weightfs_offload, module.offload_stats
