# SPDX-License-Identifier: Apache-2.0
"""Buffers that the program changes while they are written, as asynchronous checkpointing does. The file then has, piece
by piece, what was in the buffer at some time, and reading it succeeds."""

import contextlib
import mmap
import threading

import numpy
import pytest
import torch

import weightfs
import weightfs.safetensors
import weightfs.torch

STORE_SIZE = "512M"

MIB = 1 << 20
VALUES = (0x55, 0xAA)


@contextlib.contextmanager
def changing(*arrays):
    """A thread changes a byte of each page of the arrays back and forth between two values. Then the checksums of the
    memory before and after a transfer may be equal although other bytes were sent."""
    ended, turns = threading.Event(), [0]

    def change():
        while not ended.is_set():
            for array in arrays:
                array[::4096] = VALUES[turns[0] % 2]
            turns[0] += 1

    thread = threading.Thread(target=change)
    thread.start()
    try:
        yield turns
    finally:
        ended.set()
        thread.join()


def new_array(size):
    """Page-aligned, so that a device could use it directly."""
    array = numpy.frombuffer(mmap.mmap(-1, size), dtype=numpy.uint8)
    array[:] = VALUES[0]
    return array


def values_in(content):
    return set(numpy.unique(numpy.frombuffer(content, dtype=numpy.uint8)).tolist())


def check(path, size, direct):
    """Through the mount, and through a lease."""
    content = path.read_bytes()
    assert len(content) == size and values_in(content) <= set(VALUES)
    read = numpy.empty(size, dtype=numpy.uint8)
    direct.read_into(read, path)
    assert read.tobytes() == content


@pytest.mark.usefixtures("weightfs_only")
@pytest.mark.limit(600)
@pytest.mark.parametrize("options", [{}, {"atomic": True}, {"durable": True}, {"file_offset": 12_345}], ids=str)
def test_a_leased_write_of_a_buffer_that_changes_reads_back(work, options):
    size = 64 * MIB
    array, at = new_array(size), options.get("file_offset", 0)
    with weightfs.aio_handle(direct="require", intra_op_parallelism=2) as direct:
        for turn in range(2):
            path = work / f"{turn}"
            path.write_bytes(bytes([VALUES[0]]) * at)
            with changing(array) as turns:
                before = turns[0]
                while turns[0] == before:
                    direct.write_from(array, path, **options)
            check(path, size + at, direct)
            path.unlink()


@pytest.mark.usefixtures("weightfs_only")
@pytest.mark.limit(600)
def test_save_many_of_buffers_that_change_reads_back(work):
    arrays = {f"{i}": new_array(size) for i, size in enumerate((5, 100_000, 30 * MIB + 17, 4096, 20 * MIB))}
    with weightfs.aio_handle(direct="require") as direct:
        for _ in range(2):
            with changing(*arrays.values()) as turns:
                before = turns[0]
                while turns[0] == before:
                    direct.save_many(arrays, work)
            for name, array in arrays.items():
                check(work / name, array.nbytes, direct)
            loaded = {name: numpy.empty_like(array) for name, array in arrays.items()}
            direct.load_many(loaded, work)


@pytest.mark.limit(600)
def test_checksums_of_a_buffer_that_changes_are_those_of_the_file(folder, handle):
    arrays = {"a": new_array(20 * MIB + 4321), "b": new_array(3 * MIB)[1:]}
    target = {name: numpy.empty_like(array) for name, array in arrays.items()}
    for _ in range(2):
        with changing(*arrays.values()) as turns:
            before = turns[0]
            while turns[0] == before:
                try:
                    handle.write_from(arrays["a"], folder / "file", checksum=True)
                    handle.save_many(arrays, folder, checksum=True)
                except OSError as error:
                    if "checksums cannot be kept" not in str(error):
                        raise
                    pytest.skip(str(error))
        handle.read_into(target["a"], folder / "file", verify=True)
        handle.load_many(target, folder, verify=True)
        assert all(values_in(array.tobytes()) <= set(VALUES) for array in target.values())


@pytest.mark.limit(600)
@pytest.mark.parametrize("save", [weightfs.torch.save, weightfs.safetensors.save_file], ids=["torch", "safetensors"])
def test_checkpoints_of_tensors_that_change_read_back(folder, save):
    arrays = [new_array(24 * MIB + 4), new_array(9 * MIB)]
    tensors = {f"{i}": torch.from_numpy(array) for i, array in enumerate(arrays)}
    for _ in range(2):
        with changing(*arrays) as turns:
            before = turns[0]
            while turns[0] == before:
                save(tensors, folder / "checkpoint")
        assert len((folder / "checkpoint").read_bytes()) >= sum(array.nbytes for array in arrays)
        load = weightfs.torch.load if save is weightfs.torch.save else weightfs.safetensors.load_file
        loaded = load(folder / "checkpoint")
        assert {name: tensor.shape for name, tensor in loaded.items()} == {
            name: tensor.shape for name, tensor in tensors.items()}
