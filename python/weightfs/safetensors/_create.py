# SPDX-License-Identifier: Apache-2.0
"""Writes a file tensor by tensor."""

import contextlib
import threading

import torch

from weightfs._arguments import items_of
from weightfs._replace import writing
from weightfs.safetensors._format import layout
from weightfs.safetensors._save import check_tensor


@contextlib.contextmanager
def create_file(path, tensors, metadata=None, *, align=None, durable=False, handle=None):
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

    def __init__(self, path, stream, tensors, offsets):
        self._path, self._stream, self._tensors, self._offsets = path, stream, tensors, offsets
        self._changed = threading.Condition()
        self._written, self._under_way, self._stopped = set(), set(), False

    def write(self, name, tensor):
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
        done = set()
        try:
            self._stream.write_at(tensor.detach(), self._offsets[name])
            done = {name}
        finally:
            with self._changed:
                self._under_way.discard(name)
                self._written |= done
                self._changed.notify_all()

    __setitem__ = write

    def missing(self):
        """The names that were not written yet, in the order of the file."""
        with self._changed:
            return [name for name in self._offsets if name not in self._written]

    def stop(self):
        """Rejects further writes and waits for those of other threads."""
        with self._changed:
            self._stopped = True
            self._changed.wait_for(lambda: not self._under_way)

    def check_complete(self):
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
