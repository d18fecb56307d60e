# SPDX-License-Identifier: Apache-2.0
"""The header of a safetensors file under random mutations. WEIGHTFS_SEED repeats a run."""

import json
import os
import random
import struct

import pytest
import torch

from safetensors_files import file_of
from weightfs.safetensors import open as open_file, save_file
from weightfs.safetensors._format import DTYPES

RUNS = 500
LIMITS = [0, 1, 2, 7, 8, 255, 4096, 1 << 31, 1 << 32, 1 << 52, (1 << 63) - 1, 1 << 63, (1 << 64) - 1]
WORDS = [b"null", b"true", b"-1", b"1e9", b"1.0", b"[]", b"{}", b'"F32"', b'"__metadata__"', b'"F4"', b"\\u0000", b"\xff",
         b"NaN", b"9" * 5000, b"[" * 3000]


def kept_inputs():
    """Files that the encoder makes, and headers that are nearly valid."""
    facts = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}
    return [file_of({"a": facts}, bytes(24)),
            file_of({"__metadata__": {"format": "pt"}, "a": facts | {"shape": [6]},
                     "b": {"dtype": "U8", "shape": [], "data_offsets": [24, 25]}}, bytes(25)),
            file_of({"a": facts | {"shape": [0, 1 << 40], "data_offsets": [0, 0]}}, b""),
            file_of(b'{"a":{"dtype":"I8","shape":[1],"data_offsets":[0,1]}}   ', b"x"),
            file_of({}, b"")]


def mutated(generator, pool):
    """A member of the pool after a few changes; half of them get the right length of the header."""
    data = bytearray(generator.choice(pool))
    for _ in range(generator.choice([1, 1, 2, 4])):
        at = generator.randrange(len(data) + 1)
        kind = generator.randrange(6)
        if kind == 0:
            del data[at:]
        elif kind == 1 and at < len(data):
            data[at] ^= 1 << generator.randrange(8)
        elif kind == 2:
            data[at:at + generator.randrange(4)] = generator.choice(WORDS)
        elif kind == 3:
            data[at:at + generator.randrange(3)] = str(generator.choice(LIMITS)).encode()
        elif kind == 4 and len(data) >= 8:
            data[:8] = struct.pack("<Q", generator.choice(LIMITS))
        else:
            other = generator.choice(pool)
            begin = generator.randrange(len(other) + 1)
            data[at:at + generator.randrange(9)] = other[begin:begin + generator.randrange(40)]
    end = data.rfind(b"}") + 1
    if end > 8 and generator.randrange(2):
        data[:8] = struct.pack("<Q", end - 8)
    return bytes(data)


def check(path, data):
    """A file is refused by a ValueError that names it, or all its tensors are those that its header describes."""
    try:
        opened = open_file(path)
    except ValueError as error:
        assert str(path) in str(error)
        return False
    with opened:
        length = struct.unpack("<Q", data[:8])[0]
        header = json.loads(data[8:8 + length])
        header.pop("__metadata__", None)
        assert sorted(header) == opened.keys()
        for name, facts in header.items():
            tensor, (begin, end) = opened.get_tensor(name), facts["data_offsets"]
            assert tensor.dtype == DTYPES[facts["dtype"]]
            assert tensor.numel() * tensor.itemsize == end - begin
            if tensor.numel():
                found = bytes(tensor.reshape(-1).view(torch.uint8).tolist())
                assert found == data[8 + length + begin:8 + length + end]
    return True


def test_a_mutated_header_is_refused_or_read_as_it_says(tmp_path):
    seed = os.environ.get("WEIGHTFS_SEED", "1")
    generator = random.Random(random.randrange(1 << 32) if seed == "random" else int(seed))
    save_file({"x": torch.arange(6.0).view(2, 3), "y": torch.ones(3, dtype=torch.bool)}, tmp_path / "made", {"k": "v"})
    pool = [*kept_inputs(), (tmp_path / "made").read_bytes()]
    path, accepted = tmp_path / "file", 0
    for number in range(RUNS):
        data = pool[number] if number < len(pool) else mutated(generator, pool)
        path.write_bytes(data)
        try:
            accepted += check(path, data)
        except Exception as error:
            pytest.fail(f"WEIGHTFS_SEED={seed}, file {number} = {data[:300]!r}: {type(error).__name__}: {error}")
    assert RUNS > accepted >= len(pool)
