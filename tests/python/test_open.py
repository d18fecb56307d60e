# SPDX-License-Identifier: Apache-2.0
"""weightfs.open, compared with the built-in open()."""

import builtins
import errno
import io
import os
import pickle
import random
import subprocess
import sys

import numpy
import pytest
import torch

import weightfs
from tensors import flip_on_device

MIB = 1 << 20
STATE = {"large": torch.randn(2 * MIB), "small": torch.arange(5)}
ARRAY = numpy.arange(3 * MIB, dtype=numpy.int32)


def equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_libraries_save_and_load_through_it(folder):
    for save, load in ((torch.save, torch.load), (pickle.dump, pickle.load)):
        with weightfs.open(folder / "file", "wb") as ours, io.BytesIO() as theirs:
            save(STATE, ours)
            save(STATE, theirs)
            expected = theirs.getvalue()
        assert (folder / "file").read_bytes() == expected
        with weightfs.open(folder / "file") as stream:
            assert equal(load(stream), STATE)


def test_numpy_saves_and_loads_through_it(folder):
    with weightfs.open(folder / "file", "wb") as stream:
        numpy.save(stream, ARRAY)
        numpy.save(stream, ARRAY[:7])
    with weightfs.open(folder / "file") as stream:
        assert (numpy.load(stream) == ARRAY).all() and (numpy.load(stream) == ARRAY[:7]).all()
    with weightfs.open(folder / "file", "wb") as stream:
        numpy.savez(stream, large=ARRAY, small=ARRAY[:7])   # it seeks back
    with weightfs.open(folder / "file") as stream:
        loaded = numpy.load(stream)
        assert (loaded["large"] == ARRAY).all() and (loaded["small"] == ARRAY[:7]).all()


@pytest.mark.parametrize("raw", [False, True])
def test_random_operations_are_those_of_a_file(folder, tmp_path, raw):
    seed = random.randrange(1 << 32)
    generator = random.Random(seed)
    with weightfs.open(folder / "file", "w+b") as ours, builtins.open(tmp_path / "file", "w+b") as theirs:
        files = (ours.raw, theirs.raw) if raw else (ours, theirs)
        for step in range(120):
            size = generator.choice([0, 1, 700, 5000, MIB - 1, MIB, MIB + 9, 5 * MIB + 3])
            kind, at = generator.choice(["write", "write", "read", "readinto", "all", "truncate", "end"]), None
            if generator.randrange(3):
                at = generator.randrange(9 * MIB)
            data = generator.randbytes(size)
            for file in files:
                if at is not None:
                    file.seek(at)
            found = [result_of(file, kind, size, data) for file in files]
            assert found[0] == found[1], (seed, step, kind, size, at)
            assert len({file.tell() for file in files}) == 1
    assert (folder / "file").read_bytes() == (tmp_path / "file").read_bytes(), seed


def result_of(file, kind, size, data):
    if kind == "write":
        return file.write(data)
    if kind == "readinto":
        memory = bytearray(size)
        return file.readinto(memory), bytes(memory)
    if kind == "truncate":
        return file.truncate()
    if kind == "end":
        return file.seek(-min(size, file.seek(0, os.SEEK_END)), os.SEEK_END)
    return file.read(size) if kind == "read" else file.read()


def test_large_transfers_bypass_the_mount(work, weightfs_only):
    data = random.Random(1).randbytes(9 * MIB)
    with weightfs.aio_handle() as handle:
        with weightfs.open(work / "file", "wb", handle=handle) as stream:
            stream.write(data)
            assert handle.direct_operations > 0
        before = handle.direct_operations
        with weightfs.open(work / "file", handle=handle) as stream:
            assert stream.read(100) == data[:100] and handle.direct_operations == before
            assert stream.read(4 * MIB) == data[100:4 * MIB + 100] and handle.direct_operations == before + 1
            memory = bytearray(4 * MIB)
            assert stream.readinto(memory) == len(memory) and handle.direct_operations == before + 2
            stream.seek(0)
            assert stream.read() == data and handle.direct_operations == before + 3
        with weightfs.open(work / "file", "wb", handle=handle) as stream:
            before = handle.direct_operations
            for begin in range(0, len(data), MIB // 4):   # they are gathered
                stream.write(data[begin:begin + MIB // 4])
            stream.flush()
            assert handle.direct_operations == before + 3
    assert (work / "file").read_bytes() == data


def test_it_has_the_rules_of_a_file(folder):
    path, large = folder / "file", bytes(2 * MIB)
    with pytest.raises(FileNotFoundError):
        weightfs.open(path)
    with weightfs.open(path, "xb") as stream:
        assert isinstance(stream, io.BufferedWriter) and stream.name == str(path)
        assert os.fstat(stream.fileno()).st_size == 0 and not stream.readable()
        with pytest.raises(io.UnsupportedOperation):
            stream.raw.readinto(bytearray(large))
        stream.write(large)
    with pytest.raises(FileExistsError):
        weightfs.open(path, "xb")
    with weightfs.open(path, "ab") as stream:
        stream.seek(0)
        stream.write(b"x" * len(large))
    assert path.read_bytes() == large + b"x" * len(large)
    with weightfs.open(os.fsencode(path)) as stream:
        assert isinstance(stream, io.BufferedReader)
        with pytest.raises(io.UnsupportedOperation):
            stream.raw.write(large)
        assert stream.seek(-1, os.SEEK_END) and stream.read() == b"x" and stream.read(5) == b""
    with pytest.raises(ValueError, match="closed"):
        stream.raw.readinto(bytearray(large))
    with weightfs.open(path, "r+b") as stream:
        assert isinstance(stream, io.BufferedRandom) and stream.truncate(5) == 5
    assert path.read_bytes() == bytes(5)
    with pytest.raises(IsADirectoryError):
        weightfs.open(folder)
    for mode in ("r", "w", "rt", "rbt", "b", "rwb"):
        with pytest.raises(ValueError, match="mode"):
            weightfs.open(path, mode)
    assert path.read_bytes() == bytes(5)


@pytest.mark.parametrize("used", ["None", "weightfs.Handle()"])
def test_what_is_not_closed_is_written_at_exit(local, used):
    program = f"""
import weightfs
stream = weightfs.open({str(local / "file")!r}, "wb", handle={used})
stream.write(bytes(3 << 20))
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=100)
    assert (local / "file").read_bytes() == bytes(3 << 20)


def test_what_is_no_regular_file_is_one_of_python(local):
    with weightfs.open("/dev/null", "wb") as stream:
        assert stream.write(bytes(2 * MIB)) == 2 * MIB
    with weightfs.open("/dev/zero") as stream:
        assert stream.read(2 * MIB) == bytes(2 * MIB)
    ends = os.pipe()
    os.write(ends[1], b"abc")
    os.close(ends[1])
    with weightfs.open(f"/proc/self/fd/{ends[0]}") as stream:
        assert stream.read() == b"abc"
    os.close(ends[0])
    with pytest.raises(OSError, match="direct=\"require\""):
        weightfs.open(local / "file", "wb", direct="require")
    assert os.listdir(local) == []


def test_damage_is_an_error_that_names_the_file(factory, weightfs_only):
    mount = factory.mount(factory.store("128M"))
    path = mount.path / "file"
    path.write_bytes(bytes(4 * MIB))
    flip_on_device(mount.store, path, 3 * MIB)
    with weightfs.open(path) as stream:
        assert stream.read(2 * MIB) == bytes(2 * MIB)
        with pytest.raises(OSError) as caught:
            stream.read(2 * MIB)
    assert (caught.value.errno, caught.value.filename) == (errno.EIO, str(path))
