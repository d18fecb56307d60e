# SPDX-License-Identifier: Apache-2.0
"""Numbers of a wrong type or size."""

import errno
import os

import numpy
import pytest
import torch

import weightfs
import weightfs.safetensors

BAD_OFFSETS = [2 ** 64, 2 ** 63, -1, 0.0, None, "0"]


@pytest.mark.parametrize("offset", BAD_OFFSETS)
def test_an_invalid_offset_is_an_error_of_the_operation(folder, handle, offset):
    tensor, path = torch.ones(10), folder / "file"
    path.write_bytes(bytes(100))
    for call in (handle.sync_pread, handle.sync_pwrite, handle.async_pread, handle.async_pwrite):
        assert call(tensor, path, offset) == -1
        assert handle.last_error.errno == errno.EINVAL
        assert "file_offset" in str(handle.last_error)
    assert handle.read(tensor, path, False, offset) == -1
    assert handle.write(tensor, path, False, offset) == -1
    for call in (handle.read_into, handle.read_async):
        with pytest.raises(OSError, match="file_offset"):
            call(tensor, path, offset)
    assert path.read_bytes() == bytes(100)
    assert handle.wait() == 0


@pytest.mark.parametrize("number", [2 ** 40, 2 ** 31, -1])
def test_an_invalid_descriptor_is_an_error_of_the_operation(handle, number):
    assert handle.async_pwrite(torch.ones(10), number) == -1
    assert handle.last_error.errno == errno.EBADF
    with pytest.raises(OSError) as caught:
        handle.write_from(torch.ones(10), number)
    assert caught.value.errno == errno.EBADF


def test_numbers_of_numpy_are_numbers(folder, handle):
    descriptor = os.open(folder / "file", os.O_RDWR | os.O_CREAT)
    assert handle.async_pwrite(torch.ones(10), numpy.int64(descriptor), numpy.uint8(8)) == 0
    assert handle.wait() == 1
    assert handle.pwrite(torch.ones(10), numpy.int32(descriptor), True, False, numpy.int64(8)) == 1
    os.close(descriptor)
    assert (folder / "file").stat().st_size == 48
    assert weightfs.aio_handle(numpy.int64(4096), numpy.int32(2)).get_block_size() == 4096


@pytest.mark.parametrize("arguments,error", [
    ((1024.5,), TypeError), (("4096",), TypeError), ((4096, 1.0), TypeError), ((4096, None), TypeError),
    ((4096, 8, "false"), TypeError), ((4096, 8, False, "true"), TypeError),
    ((2 ** 64,), ValueError), ((4096, 2 ** 40), ValueError), ((4096, 0), ValueError), ((-1,), ValueError),
    ((4096, 1, False, False, 2 ** 20), ValueError)])
def test_invalid_options_of_a_handle_are_refused(arguments, error):
    with pytest.raises(error, match="block_size|queue_depth|single_submit|overlap_events|intra_op_parallelism"):
        weightfs.aio_handle(*arguments)


def test_locked_tensors_of_an_impossible_size_are_refused(handle):
    example = torch.empty(0, dtype=torch.float64)
    with pytest.raises(OSError) as caught:
        handle.new_cpu_locked_tensor(2 ** 62, example)
    assert caught.value.errno == errno.ENOMEM
    with pytest.raises(TypeError):
        handle.new_cpu_locked_tensor(1.5, example)


def test_objects_without_memory_are_not_pinned(handle):
    for tensor in (torch.empty(3, device="meta"), torch.eye(3).to_sparse()):
        assert handle.is_pinned(tensor) is False
        assert weightfs.is_pinned(tensor) is False
        assert handle.free_cpu_locked_tensor(tensor) is False


def test_progress_that_cannot_be_called_is_refused_at_once(folder, handle):
    for call in (handle.write_async, handle.write_from):
        with pytest.raises(TypeError, match="progress"):
            call(torch.ones(10), folder / "file", progress=5)
    assert not os.listdir(folder)
    assert handle.pending() == 0


class Array:
    """Shows numbers that no memory can have."""

    def __init__(self, name, **facts):
        self.held = numpy.zeros(64, dtype=numpy.uint8)
        setattr(self, name, {"version": 3, "shape": (8,), "typestr": "|u1",
                             "data": (self.held.__array_interface__["data"][0], False)} | facts)


IMPOSSIBLE = {
    "2^64 bytes": {"shape": (2 ** 32, 2 ** 32)},
    "2^64 bytes of floats": {"shape": (2 ** 31, 2 ** 31), "typestr": "<f4"},
    "2^63 bytes": {"shape": (2 ** 63,)},
    "a huge dimension": {"shape": (2 ** 70,)},
    "two negative dimensions": {"shape": (-4, -2)},
    "a dimension that is no number": {"shape": (8.0,)},
    "huge elements": {"shape": (8,), "typestr": "|V" + "9" * 30},
    "elements without a size": {"typestr": "<f"},
    "an address below all": {"data": (-4096, False)},
    "an address above all": {"data": (2 ** 64, False)},
    "an end above all addresses": {"data": (2 ** 64 - 4, False)},
    "too few strides": {"shape": (2, 4), "strides": (4,)},
    "strides that are no numbers": {"strides": ("1",)},
}
LEADING_AWAY = {
    "strides above all addresses": {"shape": (3,), "strides": (2 ** 63 - 1,)},
    "strides below all addresses": {"shape": (2,), "strides": (-2 ** 63 + 1,)},
    "a stride of more than 64 bits": {"shape": (2,), "strides": (2 ** 64 + 1,)},
    "2^64 bytes by a stride of 0": {"shape": (2 ** 32, 2 ** 32), "strides": (0, 0)},
}


@pytest.mark.parametrize("interface,facts", [
    *(pytest.param("__array_interface__", facts, id=name) for name, facts in (IMPOSSIBLE | LEADING_AWAY).items()),
    *(pytest.param("__cuda_array_interface__", facts, id=f"GPU: {name}") for name, facts in IMPOSSIBLE.items())])
def test_impossible_memory_is_refused(folder, handle, interface, facts):
    array = Array(interface, **facts)
    for call in (lambda: handle.write_from(array, folder / "file"), lambda: handle.read_into(array, folder / "file"),
                 lambda: handle.write_async(array, folder / "file"),
                 lambda: handle.async_pwrite(array, folder / "file"),
                 lambda: handle.save_many({"file": array}, folder), lambda: handle.load_many({"file": array}, folder),
                 lambda: handle.is_pinned(array) and pytest.fail("it cannot be")):
        try:
            call()
        except ValueError as error:
            assert "array of shape" in str(error)
    with pytest.raises(ValueError):
        handle.write_from(array, folder / "file")
    assert list(folder.iterdir()) == [] and handle.pending() == 0


def test_views_of_one_element_that_are_too_large_together_are_refused(folder, handle):
    one = torch.zeros(1, dtype=torch.uint8)
    most = one.expand(2 ** 62)
    assert weightfs._core.memory.describe(most).nbytes == 2 ** 62
    for call in (handle.save_many, handle.load_many):
        with pytest.raises(ValueError, match=f"{2 ** 64} bytes together|share memory|{2 ** 63} bytes together"):
            call({name: most for name in "abcd"}, folder)
    with pytest.raises(ValueError, match=f"{2 ** 63} bytes together"):
        handle.save_many({"a": most, "b": most}, folder)
    # the number of elements fits 64 bits, the number of bytes does not
    wide = torch.zeros(1, dtype=torch.float64).expand(2 ** 62)
    with pytest.raises(ValueError, match="bytes: more than any"):
        handle.write_from(wide, folder / "file")
    with pytest.raises(ValueError, match="bytes: more than any"):
        weightfs.safetensors.save_file({"a": wide}, folder / "file")
    with pytest.raises(ValueError, match="bytes together"):
        weightfs.safetensors.save_file({"a": most, "b": torch.zeros(1, dtype=torch.uint8).expand(2 ** 62)},
                                       folder / "file")
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("offset", [2 ** 63 - 1, 2 ** 63 - 100])
def test_an_offset_near_the_end_of_all_files_is_an_error_and_no_wrap(folder, handle, offset):
    path = folder / "file"
    path.write_bytes(bytes(1000))
    data = bytearray(b"x" * 200)
    for call in (lambda: handle.write_from(data, path, offset), lambda: handle.read_into(data, path, offset),
                 lambda: handle.write_async(data, path, offset).result(),
                 lambda: handle.read_async(data, path, offset).result()):
        with pytest.raises(OSError) as caught:
            call()
        assert caught.value.errno in (errno.EINVAL, errno.EFBIG, errno.ENODATA)
    assert path.read_bytes() == bytes(1000) and data == b"x" * 200


@pytest.mark.parametrize("count", [2 ** 61, 2 ** 63 - 1, 2 ** 64, 2 ** 70])
def test_locked_memory_of_any_number_of_elements_is_an_error(handle, count):
    for example in (torch.zeros(1, dtype=torch.float64), numpy.zeros(1)):
        with pytest.raises(OSError) as caught:
            handle.new_cpu_locked_tensor(count, example)
        assert caught.value.errno == errno.ENOMEM


@pytest.mark.parametrize("text", ["9999999999999G", "9223372036854775808", "8589934592G"])
def test_sizes_given_as_texts_are_limited(text):
    from weightfs._core.arguments import bytes_from
    with pytest.raises(ValueError, match="memory is .* it must be from"):
        bytes_from("memory", text)
    assert bytes_from("memory", "9223372036854775807") == 2 ** 63 - 1
