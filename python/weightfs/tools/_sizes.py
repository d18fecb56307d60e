# SPDX-License-Identifier: Apache-2.0
"""Sizes as arguments of the package's programs."""

from weightfs._numbers import MOST_BYTES


def parse_size(text):
    """The bytes of "400M", "1G", "64K" or a number. ValueError for anything else, and for more than a file can hold."""
    unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:].upper(), 1)
    digits = text[:-1] if unit > 1 else text
    if not digits.isdigit() or int(digits) == 0:
        raise ValueError(f"'{text}' is not a size: a number, with K, M or G, is required")
    size = int(digits) * unit
    if size > MOST_BYTES:
        raise ValueError(f"'{text}' is too large: a file has {MOST_BYTES} bytes at most")
    return size
