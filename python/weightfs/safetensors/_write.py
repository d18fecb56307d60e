# SPDX-License-Identifier: Apache-2.0
"""Saves a whole file, or writes it tensor by tensor."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from weightfs._core.arguments import items_of
from weightfs._core.files import writing
from weightfs._core.handle import Handle, chosen
from weightfs._core.streams import bytes_of
from weightfs._core.types import Direct, Path
from weightfs.safetensors._format import SafetensorValueError, layout
from weightfs.torch import _shared


def save_file(tensors: Mapping[str, torch.Tensor], filename: Path, metadata: Mapping[str, str] | None = None, *,
              handle: Handle | None = None, durable: bool = False, atomic: bool = True, align: int | None = None,
              direct: Direct = "auto") -> None:
    """Saves CPU or GPU tensors in a file in the safetensors format.

    Args:
        tensors: a dict of names and tensors. A tensor that is not contiguous is saved in row-major order;
            safetensors.torch refuses it.
        filename: the path of the file.
        metadata: a dict of strings, kept in the file's header.
        handle, direct, durable, atomic: as in weightfs.torch.save.
        align: a power of two from 8 to 1 MiB: the data of the first tensor begins at a multiple of it in the file.
            4096 lets programs that map or read whole blocks do without a copy. Without it, the bytes of the file are
            those of safetensors.torch.save_file.

    Raises:
        RuntimeError: tensors share memory, by the rule and with the text of safetensors.torch.save_file.
            save_model saves the tied weights of a model once.
        TypeError, ValueError: an argument that the format cannot store.
        OSError: the file cannot be written, also to another filesystem with direct="require"."""
    write_file(*_checked(tensors), filename, metadata, chosen(handle, direct), durable, atomic, align)


def save(tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None = None) -> bytes:
    """Returns the bytes of the file that save_file writes."""
    return join(*_checked(tensors), metadata)


def write_file(tensors, facts, filename, metadata, handle, durable, atomic, align):
    """Writes tensors or arrays; facts: name -> (dtype, shape), as of torch. The other arguments: save_file."""
    header, places = layout(facts, metadata, align)
    with writing(filename, handle, durable, atomic) as stream:
        stream.write(header)
        for name, (begin, end) in places.items():
            stream.write_tensor(tensors[name], end - begin)


def join(tensors, facts, metadata):
    """The bytes of a file with tensors or arrays."""
    header, places = layout(facts, metadata, None)
    return b"".join([header, *(bytes_of(tensors[name], end - begin) for name, (begin, end) in places.items())])


def save_model(model: torch.nn.Module, filename: Path, metadata: Mapping[str, str] | None = None,
               force_contiguous: bool = True, *, handle: Handle | None = None, durable: bool = False,
               atomic: bool = True, align: int | None = None, direct: Direct = "auto") -> None:
    """Saves the tensors of a torch.nn.Module as safetensors.torch.save_model does. Of the tensors that share memory
    (tied weights) only one is saved; the metadata maps the other names to its name.

    Args:
        force_contiguous: ignored, because save_file accepts tensors of any layout.

    The other arguments and the errors are those of save_file. Also raises RuntimeError if none of the tensors that
    share memory covers all of it."""
    tensors, metadata = model.state_dict(), dict(items_of({} if metadata is None else metadata))
    for kept, others in _shared.duplicates(tensors).items():
        for name in others:
            metadata.setdefault(name, kept)
            del tensors[name]
    save_file(tensors, filename, metadata or None, handle=handle, durable=durable, atomic=atomic, align=align,
              direct=direct)


def _checked(tensors):
    """Returns (name -> tensor, name -> (dtype, shape))."""
    if not hasattr(tensors, "items"):
        raise SafetensorValueError(f"expected a dict of names and tensors, not {type(tensors).__name__}")
    tensors = dict(tensors.items())
    for name, tensor in tensors.items():
        check_tensor(name, tensor)
    _shared.refuse_shared(tensors)
    return ({name: tensor.detach() for name, tensor in tensors.items()},
            {name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items()})


def check_tensor(name, tensor):
    """TypeError or ValueError for anything but a dense tensor of the CPU or a CUDA GPU."""
    if not isinstance(tensor, torch.Tensor):
        raise SafetensorValueError(f"a dict of names and tensors is needed; it has {name!r}: {type(tensor).__name__}")
    if tensor.layout != torch.strided:
        raise ValueError(f"{name} has the layout {tensor.layout}: only dense tensors can be saved; "
                         "make it one with .to_dense()")
    if tensor.device.type not in ("cpu", "cuda"):
        raise ValueError(f"{name} is on {tensor.device}: only tensors of the CPU and of CUDA GPUs can be saved")


@contextlib.contextmanager
def create_file(path: Path, tensors: Mapping[str, tuple[torch.dtype, Iterable[int]]],
                metadata: Mapping[str, str] | None = None, *, align: int | None = None, durable: bool = False,
                handle: Handle | None = None) -> Iterator[FileWriter]:
    """Creates a file of tensors that need not be in memory at the same time: `with create_file(path, {"w":
    (torch.float32, (4096, 4096))}) as writer: writer["w"] = tensor`. Use it in a with statement.

    The tensors go to a temporary file `.NAME.weightfs-*` beside the file. It takes the file's name, in one commit, at
    the end of the block. If the block raises an exception or lacks a tensor, or if the program is killed, the old file
    stays, or there is none. (A file that cannot be replaced, as in weightfs.torch.save with atomic=False, is
    overwritten, and has no head until the end.)

    Args:
        path: the path of the file.
        tensors: a dict of names and (dtype, shape), as of torch.
        metadata, align: as in save_file.
        durable: the file is on the device at the end of the block.
        handle: writes the tensors; by default one with its default settings.

    Returns:
        a context manager of a FileWriter.

    Raises:
        TypeError, ValueError: something that the format cannot store, or tensors that were not written.
        OSError: the file cannot be written."""
    tensors = {name: _declared(name, one) for name, one in items_of(tensors)}
    header, places = layout(tensors, metadata, align)
    with writing(path, handle, durable, atomic=True) as stream:
        stream.write(header)
        stream.flush()
        writer = FileWriter(path, stream, tensors, {name: len(header) + begin for name, (begin, _) in places.items()})
        try:
            yield writer
        finally:
            writer.stop()
        writer.check_complete()


class FileWriter:
    """Writes the tensors of a file in any order. Thread-safe: several threads may write different tensors at once."""

    def __init__(self, path: Path, stream: Any, tensors: Mapping[str, Any], offsets: Mapping[str, int]) -> None:
        self._path, self._stream, self._tensors, self._offsets = path, stream, tensors, offsets
        self._changed = threading.Condition()
        self._written, self._under_way, self._stopped = set(), set(), False

    def write(self, name: str, tensor: torch.Tensor) -> None:
        """Writes a tensor; also `writer[name] = tensor`. Returns when its memory may change again.

        Args:
            name: a declared name that was not written before.
            tensor: a tensor of the CPU or a GPU with the declared dtype and shape, of any layout.

        Raises:
            KeyError: the name was not declared.
            TypeError, ValueError: another dtype or shape, a name that was written before, or the block has ended.
            OSError: the tensor cannot be written. It may be written again."""
        check_tensor(name, tensor)
        if name not in self._tensors:
            raise KeyError(f"{self._path}: the tensor {name!r} was not declared")
        if (tensor.dtype, tensor.shape) != self._tensors[name]:
            dtype, shape = self._tensors[name]
            raise ValueError(f"{self._path}: {name!r} was declared as {dtype} of shape {tuple(shape)}; the tensor is "
                             f"{tensor.dtype} of shape {tuple(tensor.shape)}")
        with self._changed:
            if self._stopped or name in self._written or name in self._under_way:
                raise ValueError(f"{self._path}: " + ("the file is complete" if self._stopped else
                                                      f"{name!r} was written before"))
            self._under_way.add(name)
        try:
            self._stream.write_at(tensor.detach(), self._offsets[name])
            self._written.add(name)
        finally:
            with self._changed:
                self._under_way.discard(name)
                self._changed.notify_all()

    __setitem__ = write

    def missing(self) -> list[str]:
        """The names that were not written yet, in the order of the file."""
        with self._changed:
            return [name for name in self._offsets if name not in self._written]

    def stop(self) -> None:
        """Rejects further writes and waits for those of other threads."""
        with self._changed:
            self._stopped = True
            self._changed.wait_for(lambda: not self._under_way)

    def check_complete(self) -> None:
        """ValueError with the names of tensors that were not written."""
        missing = self.missing()
        if missing:
            shown = ", ".join(map(repr, missing[:10])) + (", …" if len(missing) > 10 else "")
            raise ValueError(f"{self._path}: {len(missing)} of {len(self._offsets)} tensors were not written, so the "
                             f"file was not created: {shown}")


def _declared(name, one):
    """(dtype, torch.Size) of a declared tensor."""
    try:
        dtype, shape = one
        if not isinstance(dtype, torch.dtype):
            raise TypeError(f"{dtype!r} is no dtype of torch")
        return dtype, torch.empty(shape, dtype=dtype, device="meta").shape
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"{name!r} is declared as {one!r}: (dtype, shape) is needed: {error}") from None
