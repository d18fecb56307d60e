# SPDX-License-Identifier: Apache-2.0
"""The replacement for deepspeed.ops.op_builder."""

import errno
import os

import pytest
import torch

import weightfs
from tensors import random_tensor
from weightfs import deepnvme


def test_the_builder_loads_a_module_with_everything_programs_ask_for():
    builder = deepnvme.AsyncIOBuilder()
    assert builder.is_compatible() and builder.is_compatible(verbose=True)
    module = builder.load()
    assert module.aio_handle is weightfs.aio_handle
    assert deepnvme.AsyncIOBuilder().load(verbose=False) is module
    assert deepnvme.AsyncIOBuilder.NAME == deepnvme.AsyncIOBuilder().name == "async_io"
    for name in ("aio_read", "aio_write", "deepspeed_memcpy", "gds_handle"):
        assert callable(getattr(module, name))


def test_a_handle_of_deepnvme_is_a_handle_with_counts(folder):
    tensor = random_tensor(100_001)
    with weightfs.Handle() as handle, weightfs.aio_handle() as counting:
        assert isinstance(counting, weightfs.Handle) and not hasattr(handle, "sync_pread")
        assert handle.write_from(tensor, folder / "file") == tensor.nbytes
        assert counting.read_async(torch.empty_like(tensor), folder / "file").result() == tensor.nbytes
        assert counting.sync_pread(torch.empty_like(tensor), folder / "file") == 1
        assert counting.sync_pread(tensor, folder / "missing") == -1
        with pytest.raises(FileNotFoundError):
            handle.read_into(tensor, folder / "missing")


def test_an_interrupted_wait_reports_nothing_and_the_next_one_everything(local, monkeypatch):
    def interrupt(*_):
        monkeypatch.undo()
        raise KeyboardInterrupt

    with weightfs.aio_handle() as handle:
        assert handle.async_pwrite(random_tensor(4096), "/dev/full") == 0
        assert handle.pwrite(random_tensor(4096), local / "file", True, True) == 0
        monkeypatch.setattr(os, "pread", interrupt)
        with pytest.raises(KeyboardInterrupt):
            handle.wait()
        with pytest.raises(OSError) as caught:
            handle.wait()
        assert (caught.value.errno, caught.value.completed) == (errno.ENOSPC, 1)
        assert handle.wait() == 0


@pytest.mark.parametrize("validate", [False, True])
def test_functions_of_the_module_read_and_write(folder, validate):
    tensor, path = random_tensor(100_001), str(folder / "file")
    assert deepnvme.aio_write(tensor, path, 4096, 8, True, False, validate) == 0
    target = torch.empty_like(tensor)
    assert deepnvme.aio_read(target, path, 4096, 8, False, True, validate) == 0
    assert torch.equal(target, tensor)
    assert deepnvme.aio_read(torch.empty(5), path, 4096, 8, False, True, validate) == -1


def test_memcpy_copies_between_any_layouts():
    source = torch.randn(300, 400)
    target = torch.zeros(400, 300).t()
    assert deepnvme.deepspeed_memcpy(target, source) == 0
    assert torch.equal(target, source)
    flat = torch.zeros(120_000)
    assert deepnvme.deepspeed_memcpy(dest=flat, src=source.t()) == 0
    assert torch.equal(flat.view(400, 300), source.t())
    with pytest.raises(ValueError, match="does not fit"):
        deepnvme.deepspeed_memcpy(torch.zeros(3), source)


def test_without_a_gpu_gds_reports_that(child):
    # a process that once loaded the fake libcuda.so.1 would find it by that name
    assert "no GPU" in child("""
import contextlib, sys
import pytest
from weightfs import deepnvme
with contextlib.redirect_stderr(sys.stdout):
    assert deepnvme.GDSBuilder().is_compatible(verbose=True) is False
for create in (deepnvme.GDSBuilder().load, deepnvme.gds_handle):
    with pytest.raises(RuntimeError, match="no GPU"):
        create()
""")
