# SPDX-License-Identifier: Apache-2.0
"""Converts the arguments of a handle's methods for the native module."""

import contextlib
import functools
import glob
import operator
import os
import sys

from weightfs._future import with_label
from weightfs._numbers import offset_in_file


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
