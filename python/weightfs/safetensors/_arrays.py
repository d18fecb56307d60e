# SPDX-License-Identifier: Apache-2.0
"""Arrays of numpy. Types that numpy lacks, such as bfloat16, need the package ml_dtypes, which adds them."""

import torch

from weightfs.safetensors._errors import SafetensorValueError
from weightfs.safetensors._format import DTYPES

BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}   # types by their size that all libraries know


def to_numpy(tensor):
    """An array over the memory of a CPU tensor. TypeError if numpy does not have its type."""
    import numpy
    dtype = numpy.dtype(_name_of(tensor.dtype))
    return tensor.view(BITS[tensor.dtype.itemsize]).numpy().view(dtype)


def check_array(name, array):
    """Returns an array in the machine's byte order, and the torch dtype of its elements. SafetensorValueError for
    anything that the format cannot store."""
    import numpy
    if not isinstance(name, str):
        raise TypeError(f"names of arrays are strings, not {name!r}")
    if not isinstance(array, (numpy.ndarray, numpy.generic)):
        raise SafetensorValueError(f"a dict of names and arrays is needed; it has {name!r}: {type(array).__name__}")
    found = next((dtype for dtype in DTYPES.values() if _name_of(dtype) == array.dtype.name), None)
    if found is None:
        raise SafetensorValueError(f"{name}: safetensors has no {array.dtype.name}")
    return numpy.asarray(array, dtype=array.dtype.newbyteorder("=")), found


def _name_of(dtype):
    return str(dtype).partition(".")[2]
