# SPDX-License-Identifier: Apache-2.0
"""The kinds of objects that may be passed as a buffer."""

import array
import errno
import mmap

import numpy
import pytest
import torch

import weightfs
from operations import StandingWrite
from tensors import content


@pytest.mark.parametrize("make", [bytearray, lambda b: memoryview(bytearray(b)), lambda b: array.array("B", b),
                                  lambda b: numpy.frombuffer(bytearray(b), dtype=numpy.int16),
                                  lambda b: torch.frombuffer(bytearray(b), dtype=torch.float16)],
                         ids=["bytearray", "memoryview", "array", "numpy", "torch"])
def test_buffers_of_every_kind_are_written_and_read(local, handle, make):
    values = bytes(range(256)) * 1000
    assert handle.sync_pwrite(make(values), local / "file") == 1
    assert (local / "file").read_bytes() == values
    target = make(bytes(len(values)))
    assert handle.sync_pread(target, local / "file") == 1
    assert memoryview(target if not hasattr(target, "numpy") else target.numpy()).tobytes() == values


def test_read_only_buffers_are_written_and_never_read_into(local, handle):
    frozen = numpy.arange(100)
    frozen.setflags(write=False)
    for source in (b"bytes" * 1000, memoryview(b"view"), frozen):
        assert handle.sync_pwrite(source, local / "file") == 1
        with pytest.raises(ValueError, match="read-only"):
            handle.sync_pread(source, local / "file")


def test_strided_arrays_and_views(local, handle):
    values = numpy.arange(60_000, dtype=numpy.int32).reshape(200, 300)
    for view in (values[::-1, ::3], values.T, numpy.asfortranarray(values), values[5:7, ::-2]):
        assert handle.sync_pwrite(view, local / "file") == 1
        assert (local / "file").read_bytes() == view.tobytes()
        target = numpy.zeros_like(values)[::-1, ::-1].T[:view.shape[0], :view.shape[1]]
        if target.shape == view.shape:
            assert handle.sync_pread(target, local / "file") == 1
            assert numpy.array_equal(target, view)
    assert handle.sync_pwrite(memoryview(bytearray(range(100)))[::7], local / "file") == 1
    assert (local / "file").read_bytes() == bytes(range(0, 100, 7))


def test_a_buffer_cannot_be_resized_while_it_is_in_use(local):
    handle, buffer = weightfs.aio_handle(4096, 1), bytearray(1 << 20)
    standing = StandingWrite(handle, buffer, local / "file")
    with pytest.raises(BufferError):
        buffer.extend(b"more")
    standing.go()
    standing.future.result()


def test_dlpack_alone_is_enough(local, handle):
    class Foreign:
        def __init__(self, tensor):
            self.tensor = tensor

        def __dlpack__(self, **options):
            return self.tensor.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.tensor.__dlpack_device__()

    tensor = torch.arange(1000.0)
    assert handle.sync_pwrite(Foreign(tensor), local / "file") == 1
    target = torch.zeros(1000)
    assert handle.sync_pread(Foreign(target), local / "file") == 1
    assert torch.equal(target, tensor)


def test_a_mapping_of_a_file_is_a_buffer(local, handle):
    (local / "source").write_bytes(bytes(range(256)) * 100)
    with open(local / "source", "r+b") as stream, mmap.mmap(stream.fileno(), 0) as mapping:
        assert handle.sync_pwrite(mapping, local / "copy") == 1
        handle.wait()
    assert (local / "copy").read_bytes() == (local / "source").read_bytes()


def test_parameters_and_lazy_views(local, handle):
    parameter = torch.nn.Parameter(torch.randn(10, 10))
    assert handle.sync_pwrite(parameter, local / "file") == 1
    target = torch.nn.Parameter(torch.zeros(10, 10))
    assert handle.sync_pread(target, local / "file") == 1
    assert torch.equal(parameter, target)
    lazy = torch.randn(100, dtype=torch.complex64).conj()
    assert handle.sync_pwrite(lazy, local / "file") == 1
    assert (local / "file").read_bytes() == content(torch.view_as_real(lazy.resolve_conj()))
    with pytest.raises(ValueError, match="lazily"):
        handle.sync_pread(lazy, local / "file")


def test_objects_without_bytes_are_refused(local, handle):
    path = local / "file"
    for wrong in (5, "text", None, [1, 2], object()):
        with pytest.raises(TypeError):
            handle.sync_pwrite(wrong, path)
    for wrong in (numpy.array([object()]), torch.eye(3).to_sparse(), torch.empty(3, device="meta")):
        with pytest.raises(ValueError):
            handle.sync_pwrite(wrong, path)
    assert not path.exists()


def test_empty_tensors_and_scalars(local, handle):
    for empty in (torch.empty(0), torch.empty(3, 0, 5), numpy.empty((0, 4)), b"", bytearray()):
        assert handle.sync_pwrite(empty, local / "empty") == 1
        assert (local / "empty").stat().st_size == 0
    assert handle.sync_pwrite(torch.tensor(1.5), local / "scalar") == 1
    assert (local / "scalar").stat().st_size == 4


# Numpy exposes a temporary copy of a scalar, which is freed right afterwards.
@pytest.mark.parametrize("scalar", [
    numpy.float64(2.5), numpy.str_("z" * 5000), numpy.bytes_(b"y" * 3_000_000), numpy.datetime64("2026-11-22", "ns"),
    numpy.void(bytes(range(250)) * 20), numpy.ones(2, dtype=[("a", "<f4"), ("b", "<i8", (999,))])[1]],
    ids=["float", "str", "bytes", "time", "void", "struct"])
def test_scalars_of_numpy_are_written_and_not_read_into(local, handle, scalar):
    for _ in range(5):
        assert handle.write_from(scalar, local / "scalar") == scalar.nbytes
        assert (local / "scalar").read_bytes() == numpy.asarray(scalar).tobytes()
    with pytest.raises(ValueError, match="read-only"):
        handle.read_into(scalar, local / "scalar")


def test_paths_of_every_kind(local, handle):
    for name in (str(local / "a"), local / "b", bytes(local / "c"), str(local / "ünïcödé"),
                 bytes(local) + b"/\xff\xfe"):
        assert handle.sync_pwrite(b"text", name) == 1
    assert len(list(local.iterdir())) == 5
    missing = bytes(local) + b"/\xff/none"
    assert handle.sync_pread(bytearray(4), missing) == -1
    assert handle.last_error.errno == 2


def test_times_of_numpy_are_written_and_read(local, handle):
    for times in (numpy.arange(1000).astype("datetime64[ns]"), numpy.arange(1000).astype("timedelta64[25s]")[::2]):
        assert handle.write_from(times, local / "file") == times.nbytes
        assert (local / "file").read_bytes() == times.tobytes()
        target = numpy.zeros_like(times)
        assert handle.read_into(target, local / "file") == times.nbytes
        assert numpy.array_equal(target, times)


def test_an_array_that_shows_a_copy_is_refused(local, handle):
    class Image:   # like images of PIL
        __array_interface__ = {"shape": (2, 3), "typestr": "|u1", "version": 3, "data": bytes(6)}

    with pytest.raises(TypeError, match="copy of its elements"):
        handle.write_from(Image(), local / "file")


def test_a_file_of_another_size_is_not_read_by_its_descriptor_either(local, handle):
    (local / "file").write_bytes(bytes(100))
    with open(local / "file", "rb") as stream:
        assert handle.read(bytearray(99), stream.fileno(), False) == -1
        assert handle.last_error.errno == errno.EINVAL
        assert f"descriptor {stream.fileno()}: the file has 100 bytes" in str(handle.last_error)
        assert handle.read(bytearray(100), stream.fileno(), False) == 0
    assert handle.read(bytearray(99), local / "file", False) == -1
    assert handle.last_error.filename == str(local / "file")
