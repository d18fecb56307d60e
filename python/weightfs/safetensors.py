# SPDX-License-Identifier: Apache-2.0
"""Saves and loads torch tensors in the safetensors format through a handle. The bytes are those that
safetensors.torch.save_file writes.

    import weightfs.safetensors

    weightfs.safetensors.save_file({"w": w}, "/mnt/tensors/model.safetensors")
    tensors = weightfs.safetensors.load_file("/mnt/tensors/model.safetensors")

The safetensors package is not needed."""

import json
import mmap
import os
import struct

import torch

from weightfs import _shared_tensors
from weightfs._arguments import items_of
from weightfs._gds import gds_handle
from weightfs._numbers import MOST_BYTES, bytes_of_shape
from weightfs._replace import writing
from weightfs._stream import errors_of, name_of, the_handle

# In the sort order of safetensors; the last types come first in a file.
_TYPES = {"BOOL": "bool", "F4": "float4_e2m1fn_x2", "U8": "uint8", "I8": "int8", "F8_E5M2": "float8_e5m2",
          "F8_E4M3": "float8_e4m3fn", "F8_E8M0": "float8_e8m0fnu", "F8_E4M3FNUZ": "float8_e4m3fnuz",
          "F8_E5M2FNUZ": "float8_e5m2fnuz", "I16": "int16", "U16": "uint16", "F16": "float16", "BF16": "bfloat16",
          "I32": "int32", "U32": "uint32", "F32": "float32", "C64": "complex64", "F64": "float64", "I64": "int64",
          "U64": "uint64"}
_PACKED = "F4"   # two values per byte: the file's shape counts values in the last dimension, torch's shape counts bytes
_DTYPES = {name: getattr(torch, attribute) for name, attribute in _TYPES.items() if hasattr(torch, attribute)}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_RANKS = {name: rank for rank, name in enumerate(_TYPES)}
_MAX_HEADER = 100_000_000   # the limit of safetensors
_METADATA = "__metadata__"
_PAGE = 4096


def save_file(tensors, filename, metadata=None, *, handle=None, durable=False, atomic=True):
    """Saves CPU or GPU tensors in a file in the safetensors format.

    Args:
        tensors: a dict of names and tensors. A tensor that is not contiguous is saved in row-major order;
            safetensors.torch refuses it.
        filename: the path of the file.
        metadata: a dict of strings, kept in the file's header.
        handle, durable, atomic: as in weightfs.torch.save.

    Raises:
        RuntimeError: tensors share memory, by the rule and with the text of safetensors.torch.save_file.
            save_model saves the tied weights of a model once.
        TypeError, ValueError: an argument that the format cannot store.
        OSError: the file cannot be written."""
    tensors = dict(items_of(tensors))
    for name, tensor in tensors.items():
        _check_tensor(name, tensor)
    _shared_tensors.refuse_shared(tensors)
    shapes = {name: _shape_in_file(name, tensor) for name, tensor in tensors.items()}
    sizes = {name: bytes_of_shape(name, tensor.shape, tensor.element_size()) for name, tensor in tensors.items()}
    if sum(sizes.values()) > MOST_BYTES:
        raise ValueError(f"the tensors have {sum(sizes.values())} bytes together: more than any file holds")
    ordered = sorted(tensors.items(), key=lambda item: (-_RANKS[_NAMES[item[1].dtype]], item[0].encode()))
    header, at = {}, 0
    if metadata is not None:
        header[_METADATA] = _checked(metadata)
    for name, tensor in ordered:
        end = at + sizes[name]
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": shapes[name], "data_offsets": [at, end]}
        at = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    with writing(filename, handle, durable, atomic) as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        for name, tensor in ordered:
            stream.write_tensor(tensor.detach(), sizes[name])


def save_model(model, filename, metadata=None, force_contiguous=True, *, handle=None, durable=False, atomic=True):
    """Saves the tensors of a torch.nn.Module as safetensors.torch.save_model does. Of the tensors that share memory
    (tied weights) only one is saved; the metadata maps the other names to its name.

    Args:
        force_contiguous: ignored, because save_file accepts tensors of any layout.

    The other arguments and the errors are those of save_file. Also raises RuntimeError if none of the tensors that
    share memory covers all of it."""
    tensors, metadata = model.state_dict(), dict(items_of({} if metadata is None else metadata))
    for kept, others in _shared_tensors.duplicates(tensors).items():
        for name in others:
            metadata.setdefault(name, kept)
            del tensors[name]
    save_file(tensors, filename, metadata or None, handle=handle, durable=durable, atomic=atomic)


def load_model(model, filename, strict=True, device="cpu", *, handle=None):
    """Loads a file of save_model into a torch.nn.Module of the same layout, as safetensors.torch.load_model does.

    Args:
        strict: RuntimeError if the file lacks a tensor of the model, or has one that the model does not have.
        device, handle: as in load_file.

    Returns:
        (missing, unexpected): the names that the file lacks, and the names that the model does not have."""
    loaded = load_file(filename, device, handle=handle)
    tied = _shared_tensors.duplicates(model.state_dict(), preferred=loaded)
    missing, unexpected = model.load_state_dict(loaded, strict=False)
    missing = set(missing)
    for name in (name for others in tied.values() for name in others):
        # The file need not contain it: it is filled through the tensor that it shares memory with.
        if name in missing:
            missing.remove(name)
        else:
            unexpected.append(name)
    if strict and (missing or unexpected):
        lines = [f"Error(s) in loading state_dict for {type(model).__name__}:"]
        for what, names in (("Missing", missing), ("Unexpected", unexpected)):
            if names:
                quoted = ", ".join(f'"{name}"' for name in sorted(names))
                lines.append(f"    {what} key(s) in state_dict: {quoted}")
        raise RuntimeError("\n".join(lines))
    return missing, unexpected


def _check_tensor(name, tensor):
    if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
        raise TypeError(f"a dict of names and tensors is needed; it has {name!r}: {type(tensor).__name__}")
    if name == _METADATA:
        raise ValueError(f"{name} is where safetensors keeps the metadata: no tensor can have this name")
    if tensor.layout != torch.strided:
        raise ValueError(f"{name} has the layout {tensor.layout}: only dense tensors can be saved; "
                         "make it one with .to_dense()")
    if tensor.dtype not in _NAMES:
        raise ValueError(f"{name}: safetensors has no {tensor.dtype}")
    if tensor.device.type not in ("cpu", "cuda"):
        raise ValueError(f"{name} is on {tensor.device}: only tensors of the CPU and of CUDA GPUs can be saved")


def _shape_in_file(name, tensor):
    shape = list(tensor.shape)
    if _NAMES[tensor.dtype] == _PACKED:
        if not shape:
            raise ValueError(f"{name}: safetensors has no {tensor.dtype} without a dimension")
        shape[-1] *= 2
    return shape


def _checked(metadata):
    if not hasattr(metadata, "items"):
        raise TypeError(f"metadata are a dict of strings, not {type(metadata).__name__}")
    for key, value in metadata.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise TypeError(f"metadata are strings by their names; they have {key!r}: {value!r}")
    return dict(metadata)


def load_file(filename, device="cpu", *, handle=None):
    """Returns a dict of names and tensors on the CPU or a GPU ("cuda:0"). All of them are views of one allocation,
    which is filled by one read. ValueError if the file is not in the safetensors format."""
    device = _device(device)
    # One descriptor for both reads, because the path may name another file by the second one.
    with open(filename, "rb", buffering=0) as stream:
        header, begin, size = _read_header(filename, stream.fileno())
        if device.type != "cpu":
            return _load_on_device(stream, handle, device, header, begin, size)
        return _load_on_host(stream, handle, header, begin, size)


def _device(device):
    """Converts a number to a device. With a number alone, torch would first check whether there is a GPU."""
    try:
        found = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    except RuntimeError:
        found = None
    if found is None or found.type not in ("cpu", "cuda"):
        raise ValueError(f"device is {device}: tensors can be loaded on the CPU (\"cpu\") and on CUDA GPUs (\"cuda\", "
                         "\"cuda:1\", or the number 1)")
    return found


def _load_on_host(stream, handle, header, begin, size):
    # The memory begins at the same offset within a page as the data in the file, so that nothing needs to be copied.
    lead = begin % _PAGE
    memory = mmap.mmap(-1, max(lead + size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    with the_handle(handle) as used:
        _read_into(memoryview(memory)[lead:lead + size], stream, used, begin)
    return {name: _tensor(memory, lead, facts) for name, facts in header.items()}


def _tensor(memory, lead, facts):
    dtype, shape, (begin, end) = _DTYPES[facts["dtype"]], facts["shape"], facts["data_offsets"]
    if begin == end:
        return torch.empty(shape, dtype=dtype)
    count = (end - begin) // dtype.itemsize
    return torch.frombuffer(memory, dtype=dtype, count=count, offset=lead + begin).view(shape)


def _load_on_device(stream, handle, device, header, begin, size):
    # Opened first: without a GPU, its error gives the reason.
    with the_handle(handle, gds_handle) as used:
        memory = torch.empty(size, dtype=torch.uint8, device=device)
        _read_into(memory, stream, used, begin)
    return {name: _view(memory, facts) for name, facts in header.items()}


def _read_into(memory, stream, handle, begin):
    name = name_of(stream.fileno())
    with errors_of(stream.name, name):
        if memory.nbytes:
            handle.read_into(memory, name, begin)


def _view(memory, facts):
    dtype, shape, (begin, end) = _DTYPES[facts["dtype"]], facts["shape"], facts["data_offsets"]
    piece = memory[begin:end]
    # Files of other programs need not align tensors to their element size.
    return (piece if begin % dtype.itemsize == 0 else piece.clone()).view(dtype).view(shape)


def _read_header(path, descriptor):
    """Returns (name -> facts, offset of the data, size of the data), checked against the file."""
    file_size = os.fstat(descriptor).st_size
    start = os.pread(descriptor, 8, 0)
    length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
    if not 2 <= length <= min(_MAX_HEADER, file_size - 8):
        raise ValueError(f"{path}: not a file of safetensors: a header of {length} bytes in {file_size}")
    text = os.pread(descriptor, length, 8)
    begin = 8 + length
    try:
        header, covered = _parse(text), 0
        for facts in sorted(header.values(), key=lambda facts: facts["data_offsets"]):
            covered = _check(facts, covered)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: its header is damaged: {error}") from error
    if begin + covered != file_size:
        raise ValueError(f"{path}: the header tells of {covered} bytes of tensors, the file has {file_size - begin}")
    return header, begin, covered


def _parse(text):
    """Returns name -> facts, with all types checked."""
    header = json.loads(text)
    if not isinstance(header, dict):
        raise ValueError("it is no dict")
    metadata = header.pop(_METADATA, None)
    if metadata is not None and not (isinstance(metadata, dict)
                                     and all(isinstance(value, str) for value in metadata.values())):
        raise ValueError(f"{_METADATA} is no dict of strings")
    for name, facts in header.items():
        if not isinstance(facts, dict) or not isinstance(facts.get("dtype"), str):
            raise ValueError(f"{name!r} has no dtype")
        if not _are_numbers(facts.get("shape")):
            raise ValueError(f"the shape of {name!r} is no list of numbers")
        if not _are_numbers(facts.get("data_offsets")) or len(facts["data_offsets"]) != 2:
            raise ValueError(f"the data_offsets of {name!r} are no two numbers")
    return header


def _are_numbers(values):
    return isinstance(values, list) and all(type(value) is int and value >= 0 for value in values)


def _check(facts, covered):
    """Returns the end of a tensor, which must begin where the previous one ended. Converts its shape to torch's."""
    (begin, end), shape = facts["data_offsets"], facts["shape"]
    if facts["dtype"] not in _DTYPES:
        raise ValueError(f"this library knows no tensors of type {facts['dtype']}")
    if facts["dtype"] == _PACKED:
        if not shape or shape[-1] % 2:
            raise ValueError(f"a tensor of {_PACKED} needs an even last dimension")
        shape[-1] //= 2
    most = _DTYPES[facts["dtype"]].itemsize
    for length in shape:
        most *= max(length, 1)   # torch computes strides even for empty tensors
        if most > MOST_BYTES:
            raise ValueError("the dimensions of a tensor are too large")
    size = 0 if 0 in shape else most
    if begin != covered or end - begin != size:
        raise ValueError(f"a tensor of {size} bytes has the offsets {begin} and {end} after {covered}")
    return end
