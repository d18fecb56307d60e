# SPDX-License-Identifier: Apache-2.0
"""The format of safetensors: types, the checks and the layout of a header, and errors, which programs written for the
safetensors package catch, and which are Python's own ones, too."""

import json
import struct

import torch

from weightfs._core.arguments import MOST_BYTES, bytes_of_shape, whole

try:
    from safetensors import SafetensorError
except ImportError:   # the package is not needed
    class SafetensorError(Exception):
        """The class of the safetensors package, or this one where that package is not installed."""


class SafetensorValueError(SafetensorError, ValueError):
    """A damaged file, a closed one, or an argument that is not supported."""


class SafetensorIndexError(SafetensorError, IndexError):
    """An index that a slice read as an array of numpy rejects."""


class SafetensorKeyError(SafetensorError, KeyError):
    """There is no tensor of this name."""

    __str__ = Exception.__str__   # KeyError shows the repr


# In the sort order of safetensors; the last types come first in a file.
_TYPES = {"BOOL": "bool", "F4": "float4_e2m1fn_x2", "U8": "uint8", "I8": "int8", "F8_E5M2": "float8_e5m2",
          "F8_E4M3": "float8_e4m3fn", "F8_E8M0": "float8_e8m0fnu", "F8_E4M3FNUZ": "float8_e4m3fnuz",
          "F8_E5M2FNUZ": "float8_e5m2fnuz", "I16": "int16", "U16": "uint16", "F16": "float16", "BF16": "bfloat16",
          "I32": "int32", "U32": "uint32", "F32": "float32", "C64": "complex64", "F64": "float64", "I64": "int64",
          "U64": "uint64"}
_PACKED = "F4"   # two values per byte: the file's shape counts values in the last dimension, torch's shape counts bytes
DTYPES = {name: getattr(torch, attribute) for name, attribute in _TYPES.items() if hasattr(torch, attribute)}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_RANKS = {name: rank for rank, name in enumerate(_TYPES)}
_MAX_HEADER = 100_000_000   # the limit of safetensors
_METADATA = "__metadata__"
_LEAST_ALIGNMENT, _MOST_ALIGNMENT = 8, 1 << 20


def layout(tensors, metadata, align):
    """The header of a file with these tensors.

    Args:
        tensors: name -> (dtype, shape), as of torch.
        metadata: a dict of strings, or None.
        align: the data begins at a multiple of it in the file; None: of 8. The format has no holes, so tensors behind
            the first one begin where the previous one ends.

    Returns:
        (bytes, places): the first bytes of the file, and name -> (begin, end) in the data, in the order of the file.

    Raises:
        TypeError, ValueError: something that the format cannot store."""
    header, places, at = {}, {}, 0
    if metadata is not None:
        header[_METADATA] = _checked(metadata)
    for name, (dtype, shape) in tensors.items():
        if not isinstance(name, str):
            raise TypeError(f"names of tensors are strings, not {name!r}")
        if name == _METADATA:
            raise ValueError(f"{name} is where safetensors keeps the metadata: no tensor can have this name")
        if dtype not in _NAMES:
            raise SafetensorValueError(f"{name}: safetensors has no {dtype}")
    for name, (dtype, shape) in sorted(tensors.items(), key=lambda item: (-_RANKS[_NAMES[item[1][0]]],
                                                                          item[0].encode())):
        end = at + bytes_of_shape(name, shape, dtype.itemsize)
        header[name] = {"dtype": _NAMES[dtype], "shape": shape_in_file(name, dtype, shape), "data_offsets": [at, end]}
        places[name], at = (at, end), end
    if at > MOST_BYTES:
        raise ValueError(f"the tensors have {at} bytes together: more than any file holds")
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-(8 + len(text)) % _alignment(align))
    if len(text) > _MAX_HEADER:
        raise ValueError(f"the header has {len(text)} bytes: safetensors loads no file with more than {_MAX_HEADER}")
    return struct.pack("<Q", len(text)) + text, places


def _alignment(align):
    if align is None:
        return _LEAST_ALIGNMENT
    align = whole("align", align, _LEAST_ALIGNMENT, _MOST_ALIGNMENT)
    if align & (align - 1):
        raise ValueError(f"align is {align}: it must be a power of two")
    return align


def shape_in_file(name, dtype, shape):
    """The file's shape of a tensor, as a list."""
    shape = list(shape)
    if _NAMES[dtype] == _PACKED:
        if not shape:
            raise ValueError(f"{name}: safetensors has no {dtype} without a dimension")
        shape[-1] *= 2
    return shape


def _checked(metadata):
    if not hasattr(metadata, "items"):
        raise TypeError(f"metadata are a dict of strings, not {type(metadata).__name__}")
    for key, value in metadata.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise TypeError(f"metadata are strings by their names; they have {key!r}: {value!r}")
    return dict(metadata)


def read_header(path, size, read):
    """Returns (name -> facts in the order of the file, metadata, offset of the data, size of the data, the bytes before
    the data), checked against the file. The facts have the file's fields; the shape is torch's.

    Args:
        path: the name of the file in errors.
        size: bytes of the file.
        read: read(length, offset) returns bytes of the file.

    Raises:
        SafetensorValueError: the header is damaged, or does not fit the file."""
    start = read(8, 0)
    length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
    if not 2 <= length <= min(_MAX_HEADER, size - 8):
        raise SafetensorValueError(f"{path}: not a file of safetensors: a header of {length} bytes in {size}")
    begin = 8 + length
    text = read(length, 8)
    try:
        header, metadata = _parse(text)
        header = dict(sorted(header.items(), key=lambda item: item[1]["data_offsets"]))
        covered = 0
        for name, facts in header.items():
            covered = _check(name, facts, covered)
    except (ValueError, RecursionError) as error:
        raise SafetensorValueError(f"{path}: its header is damaged: {error}") from error
    if begin + covered != size:
        raise SafetensorValueError(f"{path}: the header describes {covered} bytes of tensors, the file has "
                                   f"{size - begin}")
    return header, metadata, begin, covered, start + text


def _parse(text):
    """Returns (name -> facts, metadata), with all types checked."""
    header = json.loads(text, object_pairs_hook=_without_duplicates)
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
    return header, metadata


def _without_duplicates(pairs):
    found = dict(pairs)
    if len(found) < len(pairs):
        seen = set()
        raise ValueError(f"{next(name for name, _ in pairs if name in seen or seen.add(name))!r} is there twice")
    return found


def _are_numbers(values):
    return isinstance(values, list) and all(type(value) is int and value >= 0 for value in values)


def _check(name, facts, covered):
    """Returns the end of a tensor, which must begin where the previous one ended. Converts its shape to torch's."""
    (begin, end), shape = facts["data_offsets"], facts["shape"]
    if facts["dtype"] not in DTYPES:
        raise ValueError(f"{name!r}: this library knows no tensors of type {facts['dtype']}")
    if facts["dtype"] == _PACKED:
        if not shape or shape[-1] % 2:
            raise ValueError(f"{name!r}: a tensor of {_PACKED} needs an even last dimension")
        shape[-1] //= 2
    most = DTYPES[facts["dtype"]].itemsize
    for length in shape:
        most *= max(length, 1)   # torch computes strides even for empty tensors
        if most > MOST_BYTES:
            raise ValueError(f"{name!r}: the dimensions of a tensor are too large")
    size = 0 if 0 in shape else most
    if begin != covered or end - begin != size:
        raise ValueError(f"{name!r} of {size} bytes has the offsets {begin} and {end} after {covered}")
    return end
