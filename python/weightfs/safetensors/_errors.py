# SPDX-License-Identifier: Apache-2.0
"""Errors that programs written for the safetensors package catch, and that are Python's own ones, too."""

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
