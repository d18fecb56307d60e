# SPDX-License-Identifier: Apache-2.0
"""Defects of DeepNVMe's own module that a user of weightfs must never see. The numbers are those of its list."""

import os
import subprocess

import numpy
import pytest
import torch

import weightfs
from harness import needs
from harness.namespaces import unmount
from tensors import content, misaligned, random_tensor

STORE_SIZE = "320M"


# 1. Results of the kernel are checked.

@pytest.mark.parametrize("size", [1, 1000, 4095, 4097, 65_537, 1_048_676, 3_000_000])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_write_of_any_size_writes_exactly_that(folder, size, threads):
    handle, tensor = weightfs.aio_handle(num_threads=threads), random_tensor(size)
    assert handle.sync_pwrite(tensor, folder / "file") == 1
    assert (folder / "file").read_bytes() == content(tensor)


@pytest.mark.parametrize("offset", [0, 1, 511, 4096, 5000])
@pytest.mark.parametrize("misalignment", [0, 1, 16, 64, 512])
def test_unaligned_transfers_are_correct_and_change_nothing_else(folder, offset, misalignment):
    handle, size = weightfs.aio_handle(num_threads=2), 2_500_003
    before = random_tensor(offset + size + 777, seed=5)
    (folder / "file").write_bytes(content(before))
    tensor = misaligned(random_tensor(size), misalignment)
    assert handle.sync_pwrite(tensor, folder / "file", offset) == 1
    before[offset:offset + size] = tensor
    assert (folder / "file").read_bytes() == content(before)
    target = misaligned(torch.zeros(size, dtype=torch.uint8), misalignment)
    assert handle.sync_pread(target, folder / "file", offset) == 1
    assert torch.equal(target, tensor)


@pytest.fixture
def small_memory(local):
    """A filesystem of 8 MiB."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", local], check=True)
    yield local
    unmount(local)


@needs.root
def test_a_full_filesystem_is_an_error_and_leaves_no_partial_file(small_memory, handle):
    tensor = random_tensor(16 << 20)
    assert handle.sync_pwrite(tensor, small_memory / "file") == -1
    assert handle.last_error.errno == 28
    assert str(handle.last_error.filename) == str(small_memory / "file")
    assert os.listdir(small_memory) == []
    started = handle.async_pwrite(tensor, small_memory / "file")
    assert started in (0, -1)
    if started == 0:
        with pytest.raises(OSError, match="No space left"):
            handle.wait()
    assert handle.sync_pwrite(tensor[:1 << 20], small_memory / "file") == 1


def test_a_full_store_is_an_error(work, handle):
    tensor = torch.zeros(400 << 20, dtype=torch.uint8)
    assert handle.sync_pwrite(tensor, work / "file") == -1
    assert handle.last_error.errno == 28
    assert os.listdir(work) == []
    assert handle.sync_pwrite(tensor[:1 << 20], work / "file") == 1


def test_a_full_device_fails_the_wait_and_says_where(handle):
    assert handle.async_pwrite(torch.ones(5, 7), "/dev/full", 0) == 0
    with pytest.raises(OSError, match="No space left") as caught:
        handle.wait()
    assert (caught.value.errno, caught.value.filename, caught.value.offset) == (28, "/dev/full", 0)
    assert caught.value.shape == (5, 7)
    assert "(5, 7)" in str(caught.value)
    assert handle.wait() == 0


# 2. Errors are reported and do not end the process.

def test_reading_past_the_end_is_an_error_that_counts_the_bytes(folder, handle):
    (folder / "file").write_bytes(bytes(10_000))
    path = str(folder / "file")
    assert handle.sync_pread(torch.empty(4096, dtype=torch.uint8), path, 8000) == -1
    assert f"read of 4096 bytes at offset 8000 of {path}: only 2000 bytes there" in str(handle.last_error)
    assert handle.async_pread(torch.empty(1, dtype=torch.uint8), path, 20_000) == -1
    assert "only 0 bytes there" in str(handle.last_error)
    assert handle.pending() == 0
    assert handle.wait() == 0


def test_a_closed_descriptor_is_an_error(folder, handle):
    descriptor = os.open(folder / "file", os.O_RDWR | os.O_CREAT)
    os.close(descriptor)
    assert handle.async_pwrite(torch.ones(10), descriptor) == -1
    assert handle.last_error.errno == 9
    assert handle.async_pwrite(torch.ones(10), -1) == -1
    assert handle.async_pwrite(torch.ones(10), 10_000) == -1
    assert handle.wait() == 0


def test_a_descriptor_of_the_wrong_kind_is_an_error(folder, handle):
    (folder / "file").write_bytes(b"before")
    descriptor = os.open(folder / "file", os.O_RDONLY)
    assert handle.async_pwrite(torch.ones(10), descriptor) == -1
    os.close(descriptor)
    reader, writer = os.pipe()
    assert handle.async_pwrite(torch.ones(10), writer) == -1
    assert handle.last_error.errno == 29
    os.close(reader)
    os.close(writer)
    assert (folder / "file").read_bytes() == b"before"


def test_missing_files_and_folders_are_errors(folder, handle):
    assert handle.sync_pread(torch.ones(10), folder / "missing") == -1
    assert isinstance(handle.last_error, FileNotFoundError)
    assert handle.async_pread(torch.ones(10), folder / "missing") == -1
    assert handle.sync_pwrite(torch.ones(10), folder / "missing" / "file") == -1
    assert handle.sync_pwrite(torch.ones(10), folder) == -1
    assert isinstance(handle.last_error, IsADirectoryError)
    assert handle.read(torch.ones(10), folder / "missing", False) == -1
    assert handle.wait() == 0
    assert os.listdir(folder) == []


# 3. A handle may end at any moment.

@pytest.mark.limit(300)
@pytest.mark.parametrize("kind,count", [("local", 1000), ("memory_folder", 100), ("work", 100)],
                         ids=["disk", "memory", "mount"])
def test_a_thousand_handles_with_operations_under_way_come_and_go(request, child, kind, count):
    folder = request.getfixturevalue(kind)
    out = child(f"""
import os, torch, weightfs
os.chdir({str(folder)!r})
tensor = torch.ones(1 << 18)
open("source", "wb").write(bytes(tensor.nbytes))
before = len(os.listdir("/proc/self/fd"))
for i in range({count}):
    handle = weightfs.aio_handle(65536, 4, False, True, 1 + i % 2)
    future = handle.write_async(tensor, "a", progress=lambda *_: None)
    future.add_done_callback(lambda done: done.nbytes)
    assert handle.async_pread(torch.empty_like(tensor), "source") == 0
    if i % 3 == 0:
        handle.wait()
    if i % 5 == 0:
        handle.sync_pwrite(tensor, "b")
    del handle, future
assert len(os.listdir("/proc/self/fd")) == before, os.listdir("/proc/self/fd")
print("done")
# And one that the end of the process finds at work.
last = weightfs.aio_handle()
last.async_pwrite(tensor, "c")
""", limit=280)
    assert out == "done\n"


# 4. Files and tensors of every shape.

def test_a_smaller_overwrite_leaves_no_stale_tail(folder, handle):
    large, small = random_tensor(5_000_000), random_tensor(1_000_001, seed=2)
    for write in (handle.sync_pwrite, lambda *arguments: handle.async_pwrite(*arguments) + handle.wait(),
                  lambda *arguments: handle.write(*arguments, False), lambda *a: handle.pwrite(*a, True, False)):
        assert handle.sync_pwrite(large, folder / "file") == 1
        write(small, folder / "file")
        assert (folder / "file").read_bytes() == content(small)


def test_a_failed_overwrite_does_not_shorten_the_old_file(work, handle):
    old = random_tensor(3_000_000)
    assert handle.sync_pwrite(old, work / "file") == 1
    assert handle.sync_pwrite(torch.zeros(400 << 20, dtype=torch.uint8), work / "file") == -1
    assert (work / "file").stat().st_size == old.nbytes


def test_a_write_at_an_offset_keeps_the_surrounding_bytes(folder, handle):
    before = random_tensor(3_000_000)
    piece = random_tensor(1_000_000, seed=2)
    assert handle.sync_pwrite(before, folder / "file") == 1
    assert handle.sync_pwrite(piece, folder / "file", 0) == 1
    assert handle.sync_pwrite(piece, folder / "file", 1_500_001) == 1
    before[:1_000_000] = piece
    before[1_500_001:2_500_001] = piece
    assert (folder / "file").read_bytes() == content(before)


LAYOUTS = {
    "transposed": lambda t: t.view(1000, 700).t(),
    "every second column": lambda t: t.view(1000, 700)[:, ::2],
    "rows with gaps": lambda t: t.view(1000, 700)[:, 100:600],
    "permuted": lambda t: t.view(10, 100, 700).permute(2, 0, 1),
    "one column": lambda t: t.view(1000, 700)[:, 3],
    "2-D contiguous": lambda t: t.view(1000, 700),
    "scalar": lambda t: t[5],
    "strange strides": lambda t: t.as_strided((50, 60, 7), (3500, 11, 1), 17),
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float64, torch.complex128], ids=str)
def test_tensors_of_every_layout_are_written_and_read_right(folder, handle, layout, dtype):
    memory = random_tensor(700_000, torch.uint8).to(dtype)
    tensor = layout(memory)
    assert handle.sync_pwrite(tensor, folder / "file") == 1
    assert (folder / "file").read_bytes() == content(tensor)
    target_memory = torch.zeros_like(memory)
    target = layout(target_memory)
    assert handle.sync_pread(target, folder / "file") == 1
    assert torch.equal(target, tensor)
    # Nothing outside the view has changed.
    expected = torch.zeros_like(memory)
    layout(expected).copy_(tensor)
    assert torch.equal(target_memory, expected)


def test_sizes_that_the_threads_do_not_divide(folder):
    handle = weightfs.aio_handle(1 << 20, 4, False, True, 7)
    for count in (1, 6, 8, 4096, 28_673, 1_000_003):
        tensor, target = random_tensor(count), torch.empty(count, dtype=torch.uint8)
        assert handle.sync_pwrite(tensor, folder / "file") == 1
        assert handle.sync_pread(target, folder / "file") == 1
        assert torch.equal(target, tensor)


def test_reading_into_elements_that_share_memory_is_refused(folder, handle):
    (folder / "file").write_bytes(bytes(64))
    assert handle.sync_pread(torch.zeros(4).expand(4, 4), folder / "file") == -1
    assert "share memory" in str(handle.last_error)


# 5. Unpinned memory needs no second copy of the tensor.

def test_unpinned_tensors_take_no_memory_of_their_size(local, handle):
    def status(name):
        with open("/proc/self/status", encoding="ascii") as lines:
            return next(int(line.split()[1]) for line in lines if line.startswith(name)) // 1024

    tensor = misaligned(random_tensor(1).repeat(256 << 20), 1)
    target = tensor.clone()
    handle.sync_pwrite(tensor[:4 << 20], local / "file")   # make one-time allocations now
    with open("/proc/self/clear_refs", "w", encoding="ascii") as peak:
        peak.write("5")   # reset the peak
    before = status("VmHWM")
    assert handle.sync_pwrite(tensor, local / "file") == 1
    assert handle.sync_pread(target, local / "file") == 1
    assert status("VmHWM") - before < 48
    assert status("VmLck") == 0


# 6. Each operation has a state of its own; see test_futures.py.

def test_one_failure_among_many_names_its_file_and_leaves_the_others(folder, handle):
    tensors = [random_tensor(100_000, seed=i) for i in range(4)]
    for i, tensor in enumerate(tensors):
        assert handle.async_pwrite(tensor, folder / f"{i}") == 0
        assert handle.async_pwrite(tensor, "/dev/full", 0) == 0
    with pytest.raises(OSError) as caught:
        handle.wait()
    assert len(caught.value.errors) == 4
    assert {error.filename for error in caught.value.errors} == {"/dev/full"}
    assert caught.value.completed == 4
    for i, tensor in enumerate(tensors):
        assert (folder / f"{i}").read_bytes() == content(tensor)
    assert handle.wait() == 0


def test_numpy_gives_what_torch_gives(folder, handle):
    array = numpy.arange(100_000, dtype=numpy.float32).reshape(100, 1000)
    assert handle.sync_pwrite(array, folder / "file") == 1
    target = torch.empty(100, 1000)
    assert handle.sync_pread(target, folder / "file") == 1
    assert torch.equal(target, torch.from_numpy(array))
