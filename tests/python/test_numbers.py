"""Numbers of a wrong kind or size."""

import errno
import os

import numpy
import pytest
import torch

import weightfs

BAD_OFFSETS = [2 ** 64, 2 ** 63, -1, 0.0, None, "0"]


@pytest.mark.parametrize("offset", BAD_OFFSETS)
def test_what_is_no_offset_is_an_error_of_the_operation(folder, handle, offset):
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
def test_what_is_no_descriptor_is_an_error_of_the_operation(handle, number):
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
def test_what_is_no_option_of_a_handle_is_refused(arguments, error):
    with pytest.raises(error, match="block_size|queue_depth|single_submit|overlap_events|intra_op_parallelism"):
        weightfs.aio_handle(*arguments)


def test_locked_tensors_of_an_impossible_size_are_refused(handle):
    example = torch.empty(0, dtype=torch.float64)
    with pytest.raises(OSError) as caught:
        handle.new_cpu_locked_tensor(2 ** 62, example)
    assert caught.value.errno == errno.ENOMEM
    with pytest.raises(TypeError):
        handle.new_cpu_locked_tensor(1.5, example)


def test_what_has_no_memory_is_not_pinned(handle):
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
