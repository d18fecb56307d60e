# SPDX-License-Identifier: Apache-2.0
"""Checks and converts the arguments of callers for the native module."""

import contextlib
import errno
import functools
import glob
import math
import operator
import os
import sys

from weightfs._core.future import with_label

_MOST_FILE_BYTES = (1 << 63) - 1
_MOST_DESCRIPTOR = (1 << 31) - 1
MOST_BYTES = (1 << 63) - 1   # per tensor, and for all tensors of a call
_ADDRESSES = 1 << 64


def whole(name, value, least, most):
    """TypeError for anything but a whole number, ValueError for one out of range."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is {value!r}: it must be a whole number") from None
    if not least <= number <= most:
        raise ValueError(f"{name} is {number}: it must be from {least} to {most}")
    return number


def flag(name, value):
    """TypeError for anything but a truth value, such as the string "false"."""
    if not hasattr(value, "__bool__"):
        raise TypeError(f"{name} is {value!r}: it must be True or False")
    return bool(value)


def offset_in_file(value):
    """OSError (EINVAL) for an invalid file offset."""
    if type(value) is int and 0 <= value <= _MOST_FILE_BYTES:
        return value
    try:
        return whole("file_offset", value, 0, _MOST_FILE_BYTES)
    except (TypeError, ValueError) as error:
        raise OSError(errno.EINVAL, str(error)) from None


def file_name(file):
    """Returns a path as bytes, or a descriptor. OSError (EINVAL, EBADF) for anything else."""
    if isinstance(file, str) or not hasattr(file, "__index__"):
        return path_name(file)
    number = operator.index(file)
    if not 0 <= number <= _MOST_DESCRIPTOR:
        raise OSError(errno.EBADF, f"{number} is not an open descriptor")
    return number


def path_name(path):
    """Returns a path as bytes. OSError (EINVAL) for one with a null byte, at which the native module would cut it."""
    name = os.fsencode(path)
    if b"\0" in name:
        raise OSError(errno.EINVAL, f"{name!r} cannot be a path: it has a null byte")
    return name


def numbers_of(label, name, values):
    """Converts numbers from another library to a list of ints. ValueError for anything but whole numbers."""
    try:
        return [operator.index(value) for value in values]
    except TypeError:
        raise ValueError(f"{label}: its {name} {values!r} is not a sequence of whole numbers") from None


def bytes_of_shape(label, shape, item_size):
    """The size of a shape in bytes. ValueError if no memory can have that shape."""
    if item_size < 0 or any(length < 0 for length in shape):
        raise ValueError(f"{label}: a dimension of its shape is negative")
    size = math.prod(shape) * item_size
    if size > MOST_BYTES:
        raise ValueError(f"{label} would have {size} bytes: more than any memory or file can hold")
    return size


def check_extent(label, address, nbytes, shape, strides, item_size):
    """ValueError if elements would be outside the address space. Strides are in bytes; None means contiguous. There
    must be at least one element."""
    if strides is None:
        if 0 <= address <= _ADDRESSES - nbytes:
            return
        raise ValueError(f"{label} is outside the address space")
    if len(strides) != len(shape):
        raise ValueError(f"{label} has {len(shape)} dimensions and {len(strides)} strides")
    steps = [(count - 1) * step for count, step in zip(shape, strides)]
    first = address + sum(step for step in steps if step < 0)
    behind = address + sum(step for step in steps if step > 0) + item_size
    if first < 0 or behind > _ADDRESSES or any(abs(step) > MOST_BYTES for step in strides):
        raise ValueError(f"{label} with the strides {tuple(strides)} is outside the address space")


def bytes_of_all(memories):
    """The total size of several memories. ValueError if it exceeds what is possible."""
    size = sum(memory.nbytes for memory in memories)
    if size > MOST_BYTES:
        raise ValueError(f"the tensors would have {size} bytes together: more than any memory or file can hold")
    return size


def bytes_from(name, value, least=1):
    """A number of bytes, or a text for parse_size."""
    return whole(name, parse_size(value) if isinstance(value, str) else value, least, MOST_BYTES)


def parse_size(text):
    """The bytes of "400M", "1G", "64K" or a number. ValueError for anything else."""
    unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:].upper(), 1)
    digits = text[:-1] if unit > 1 else text
    if not digits.isdigit():
        raise ValueError(f"'{text}' is not a size: a number, with K, M or G, is required")
    return int(digits) * unit


class _Whole(int):
    """The default of `file_offset` in a write. It equals 0, but can be distinguished from an explicit 0."""

    __slots__ = ()

    def __repr__(self):
        return "0"


WHOLE = _Whole(0)


def items_of(tensors):
    """The items of a mapping of names to tensors. TypeError for anything else."""
    if not hasattr(tensors, "items"):
        raise TypeError(f"expected a dict of names and tensors, not {type(tensors).__name__}")
    return tensors.items()


def written_offset(offset):
    """The offset for the native module. None, meaning the whole file, if the caller passed no offset."""
    return None if offset is None or offset is WHOLE else offset_in_file(offset)


class _CopiedDescriptor:
    """A descriptor that the caller may close at once. operator.index() gives the copy; int() and str() give the
    caller's number."""

    def __init__(self, number):
        self._number, self._copy = number, os.dup(number)

    def __index__(self):
        return self._copy

    def __int__(self):
        return self._number

    def __str__(self):
        return f"descriptor {self._number}"

    def __del__(self):
        with contextlib.suppress(AttributeError):
            os.close(self._copy)


def to_keep(file):
    """A file name that stays valid: a copy of a descriptor, or the absolute form of a relative path."""
    if hasattr(file, "__index__"):
        return _CopiedDescriptor(operator.index(file))
    if os.path.isabs(path := os.fsencode(file)):
        return file
    with contextlib.suppress(OSError):
        directory = os.getcwdb()
        if os.path.samefile(directory, b"."):
            return os.path.join(directory, path)
    return file


@contextlib.contextmanager
def labelled(memory):
    try:
        yield
    except OSError as error:
        raise with_label(error, memory)


@functools.cache
def find_cufile():
    """The path of cuFile's library in the packages that ship it for torch, or ""."""
    for folder in filter(None, sys.path):
        for path in sorted(glob.glob(os.path.join(glob.escape(folder), "nvidia", "*", "lib", "libcufile.so.0"))):
            return path
    return ""
