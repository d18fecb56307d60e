# SPDX-License-Identifier: Apache-2.0
"""Reads single tensors of a torch.save archive into the memory of other tensors."""

import zipfile

import torch
from torch.utils._pytree import tree_flatten

_RUN = 64 << 10      # shorter runs of bytes are read together with the gaps between them
_SPAN = 64 << 20     # the most memory for such a read
_DIRECT = 1 << 20    # from this size on, the handle reads into the tensor's memory


def is_stored(stream):
    """True if the stream is an archive whose records are all stored as they are. torch writes such archives, and loads
    compressed ones, too, but not by their offsets."""
    try:
        with zipfile.ZipFile(stream) as archive:
            return all(record.compress_type == zipfile.ZIP_STORED for record in archive.infolist())
    except (zipfile.BadZipFile, NotImplementedError, UnicodeDecodeError):   # Python may know fewer archives than torch
        return False
    finally:
        stream.seek(0)


def outline(stream):
    """Loads an archive without the data of its tensors, which are on the device "meta". Only plain objects are allowed
    (weights_only=True). NotImplementedError if this torch or this file does not say where the data is."""
    saved = torch.load(stream, map_location="meta", weights_only=True)
    tensors = [each for each in tree_flatten(saved)[0] if isinstance(each, torch.Tensor)]
    for tensor in tensors:
        start_of(tensor)
    if tensors and not is_stored(stream):
        raise NotImplementedError(f"{stream.shown}: its records are compressed: load the state with torch.load")
    return saved


def start_of(tensor):
    """The offset of the tensor's storage in its archive."""
    try:
        return tensor.untyped_storage()._checkpoint_offset
    except (AttributeError, NotImplementedError):
        raise NotImplementedError(f"torch {torch.__version__} does not say where the file has a tensor of layout "
                                  f"{tensor.layout}: load the state with torch.load, or with a newer torch") from None


def fill(target, source, stream):
    """Reads the bytes of `source`, a tensor of outline() or a view of one, into `target`.

    Args:
        target: a dense tensor of the same shape, on any device and of any layout.
        stream: a DirectReader of the archive.

    Raises:
        OSError, EOFError: a part of `target` may be filled."""
    if _is_marked(source) or _is_marked(target):
        stored = torch.empty(source.shape, dtype=source.dtype)
        fill(stored, marked_as(source, source), stream)   # a second mark takes the first one away
        target.detach().copy_(marked_as(stored, source))
        return
    # The order of dimensions in the file, so that transposed tensors are one run, too.
    order = sorted(range(source.dim()), key=lambda dimension: -source.stride(dimension))
    _fill(target.detach().permute(order), source.permute(order), stream, start_of(source))


def marked_as(tensor, other):
    """The tensor with the marks of `other`: torch conjugates and negates without changing the bytes."""
    tensor = torch._neg_view(tensor) if other.is_neg() else tensor
    return tensor.conj() if other.is_conj() else tensor


def _is_marked(tensor):
    return tensor.is_conj() or tensor.is_neg()


def _fill(target, source, stream, begin):
    if source.numel() == 0:
        return
    at = begin + source.storage_offset() * source.element_size()
    if source.is_contiguous():
        _read(target, source.dtype, stream, at)
        return
    span = 1 + sum((count - 1) * step for count, step in zip(source.shape, source.stride()))
    run = source[0].numel() * source.element_size() if source.dim() > 1 else 0
    if run >= _RUN:
        for one, other in zip(target, source):
            _fill(one, other, stream, begin)
    elif span * source.element_size() > _SPAN and len(source) > 1:
        half = len(source) // 2
        _fill(target[:half], source[:half], stream, begin)
        _fill(target[half:], source[half:], stream, begin)
    else:
        together = torch.empty(span, dtype=source.dtype)
        _read(together, source.dtype, stream, at)
        target.copy_(together.as_strided(source.shape, source.stride()))


def _read(target, dtype, stream, at):
    nbytes = target.numel() * dtype.itemsize
    if dtype == target.dtype and nbytes >= _DIRECT and target.device.type in ("cpu", "cuda"):
        stream.read_tensor(target, at)
        return
    memory = bytearray(nbytes)
    stream.seek(at)
    if stream.readinto(memory) != nbytes:
        raise EOFError(f"{stream.shown}: the file ends before offset {at + nbytes}")
    target.copy_(torch.frombuffer(memory, dtype=dtype).view(target.shape))
