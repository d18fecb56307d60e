# SPDX-License-Identifier: Apache-2.0
"""DeepNVMe's methods, as DeepNVMe programs use them."""

import inspect
import itertools
import os
import threading

import pytest
import torch

import weightfs
from tensors import content, random_tensor
from weightfs.deepnvme import AsyncIOBuilder

BLOCK_SIZE, QUEUE_DEPTH, THREADS = 1024, 2, 2
SIZE = 1 << 20

knobs = pytest.mark.parametrize("single_submit,overlap_events", list(itertools.product([False, True], repeat=2)))
pinned = pytest.mark.parametrize("pinned", [False, True], ids=["unpinned", "pinned"])


def make(single_submit=True, overlap_events=True):
    return AsyncIOBuilder().load().aio_handle(BLOCK_SIZE, QUEUE_DEPTH, single_submit, overlap_events, THREADS)


def tensor_of(handle, values, pinned):
    if not pinned:
        return values.clone()
    return handle.new_cpu_locked_tensor(values.numel(), values).copy_(values)


@knobs
@pinned
@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_reading_gives_the_bytes_of_the_file(folder, single_submit, overlap_events, pinned, asynchronous):
    values = random_tensor(SIZE)
    (folder / "file").write_bytes(content(values))
    handle = make(single_submit, overlap_events)
    tensor = tensor_of(handle, torch.zeros(SIZE, dtype=torch.uint8), pinned)
    if asynchronous:
        assert handle.async_pread(tensor, str(folder / "file"), 0) == 0
        assert handle.wait() == 1
    else:
        assert handle.sync_pread(tensor, str(folder / "file"), 0) == 1
    assert torch.equal(tensor, values)


@knobs
@pinned
@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_writing_makes_a_file_of_the_bytes(folder, single_submit, overlap_events, pinned, asynchronous):
    handle = make(single_submit, overlap_events)
    tensor = tensor_of(handle, random_tensor(SIZE), pinned)
    if asynchronous:
        assert handle.async_pwrite(tensor, str(folder / "file"), 0) == 0
        assert handle.wait() == 1
    else:
        assert handle.sync_pwrite(tensor, str(folder / "file"), 0) == 1
    assert (folder / "file").read_bytes() == content(tensor)


@pytest.mark.parametrize("count", [2, 3])
@knobs
def test_wait_counts_what_was_queued(folder, count, single_submit, overlap_events):
    handle = make(single_submit, overlap_events)
    tensors = [random_tensor(SIZE, seed=i) for i in range(count)]
    for i, tensor in enumerate(tensors):
        assert handle.async_pwrite(tensor, folder / f"{i}", 0) == 0
    assert handle.wait() == count
    targets = [torch.empty(SIZE, dtype=torch.uint8) for _ in tensors]
    for i, target in enumerate(targets):
        assert handle.async_pread(target, folder / f"{i}", 0) == 0
    assert handle.wait() == count
    assert all(torch.equal(a, b) for a, b in zip(tensors, targets))
    assert handle.wait() == 0


def test_a_synchronous_call_counts_the_asynchronous_ones_it_waited_for(folder):
    handle = make()
    for name in "ab":
        assert handle.async_pwrite(random_tensor(SIZE), folder / name) == 0
    assert handle.sync_pwrite(random_tensor(SIZE), folder / "c") == 3
    assert handle.wait() == 0


@knobs
def test_getters_give_the_values_of_the_constructor(single_submit, overlap_events):
    handle = make(single_submit, overlap_events)
    assert (handle.get_block_size(), handle.get_queue_depth()) == (BLOCK_SIZE, QUEUE_DEPTH)
    assert handle.get_single_submit() is single_submit
    assert handle.get_overlap_events() is overlap_events
    assert handle.get_intra_op_parallelism() == handle.get_thread_count() == THREADS
    assert handle.get_alignment() == 512 * THREADS


def test_defaults_and_both_spellings_of_the_threads():
    handle = weightfs.aio_handle()
    assert handle.get_block_size() == 1 << 20
    assert handle.get_queue_depth() == 128
    assert handle.get_single_submit() is False
    assert handle.get_overlap_events() is False
    assert handle.get_intra_op_parallelism() == 1
    assert weightfs.aio_handle(intra_op_parallelism=3).get_thread_count() == 3
    assert weightfs.aio_handle(num_threads=3).get_intra_op_parallelism() == 3
    with pytest.raises(TypeError):
        weightfs.aio_handle(num_threads=3, intra_op_parallelism=3)
    named = weightfs.aio_handle(block_size=4096, queue_depth=3, single_submit=True, overlap_events=True)
    assert (named.get_block_size(), named.get_queue_depth()) == (4096, 3)
    assert named.get_single_submit() and named.get_overlap_events()
    for wrong in ({"block_size": 0}, {"queue_depth": 0}, {"num_threads": 0}, {"queue_depth": -1}):
        with pytest.raises(ValueError):
            weightfs.aio_handle(**wrong)


def test_every_method_takes_its_arguments_by_name(folder):
    handle, tensor, path = make(), random_tensor(2048), str(folder / "file")
    assert handle.sync_pwrite(buffer=tensor, filename=path, file_offset=0) == 1
    assert handle.sync_pread(buffer=tensor, filename=path, file_offset=0) == 1
    assert handle.async_pwrite(buffer=tensor, filename=path, file_offset=0) == 0
    assert handle.async_pread(buffer=tensor, filename=path, file_offset=0) == 0
    descriptor = os.open(path, os.O_WRONLY)
    assert handle.async_pwrite(buffer=tensor, fd=descriptor, file_offset=0) == 0
    assert handle.wait() == 3
    os.close(descriptor)
    for validate, asynchronous in itertools.product([False, True], repeat=2):
        options = {"buffer": tensor, "filename": path, "validate": validate, "async": asynchronous, "file_offset": 0}
        expected = 0 if asynchronous else 1
        assert handle.pwrite(**options) == expected
        assert handle.wait() == (1 if asynchronous else 0)
        assert handle.pread(**options) == expected
        assert handle.wait() == (1 if asynchronous else 0)
        assert handle.pread(tensor, path, validate, asynchronous, 0) == expected
        handle.wait()
    assert handle.write(buffer=tensor, filename=path, validate=True, file_offset=0) == 0
    assert handle.read(buffer=tensor, filename=path, validate=True, file_offset=0) == 0
    with pytest.raises(TypeError):
        handle.pread(tensor, path, True)
    with pytest.raises(TypeError):
        handle.pread(tensor, path, True, False, 0, 0)
    defaults = inspect.signature(handle.sync_pwrite).parameters["file_offset"]
    assert defaults.default == 0


def test_read_needs_a_file_of_the_size_of_the_buffer(folder):
    handle = make()
    (folder / "file").write_bytes(bytes(3000))
    assert handle.read(torch.empty(3000, dtype=torch.uint8), folder / "file", True) == 0
    assert handle.read(torch.empty(2999, dtype=torch.uint8), folder / "file", False) == -1
    assert "3000 bytes" in str(handle.last_error)
    assert handle.read(torch.empty(3001, dtype=torch.uint8), folder / "file", False) == -1


def test_validation_notices_a_file_that_differs(folder, monkeypatch):
    handle, tensor = make(), random_tensor(100_000)
    assert handle.sync_pwrite(tensor, folder / "file") == 1
    really = os.pread
    monkeypatch.setattr(os, "pread", lambda *arguments: really(*arguments)[:-1] + b"?")
    assert handle.pread(tensor, folder / "file", True, False) == -1
    assert "validation" in str(handle.last_error)
    assert handle.pwrite(tensor, folder / "file", True, True) == 0
    with pytest.raises(OSError, match="validation"):
        handle.wait()


PARTS = [[1, 1, 1], [1, 1, 2], [1, 2, 1], [2, 1, 1]]


@pytest.mark.parametrize("parts", PARTS, ids=str)
@pytest.mark.parametrize("backwards", [False, True], ids=["forwards", "backwards"])
@pytest.mark.parametrize("way", ["sync", "async", "descriptor"])
def test_a_file_written_in_parts_is_whole(folder, parts, backwards, way):
    handle, whole = make(), random_tensor(1024 * sum(parts))
    offsets = [1024 * sum(parts[:i]) for i in range(len(parts))]
    pieces = list(zip(offsets, parts))
    descriptor = os.open(folder / "file", os.O_WRONLY | os.O_CREAT) if way == "descriptor" else None
    for offset, length in reversed(pieces) if backwards else pieces:
        piece = whole[offset:offset + 1024 * length]
        if way == "sync":
            assert handle.sync_pwrite(piece, folder / "file", offset) == 1
        elif way == "async":
            assert handle.async_pwrite(piece, folder / "file", offset) == 0
        else:
            assert handle.async_pwrite(piece, descriptor, offset) == 0
    assert handle.wait() == (0 if way == "sync" else len(parts))
    if descriptor is not None:
        os.close(descriptor)
    assert (folder / "file").read_bytes() == content(whole)


@pytest.mark.parametrize("parts", PARTS, ids=str)
@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_a_file_read_in_parts_is_whole(folder, parts, asynchronous):
    handle, whole = make(), random_tensor(1024 * sum(parts))
    (folder / "file").write_bytes(content(whole))
    target, offset = torch.zeros_like(whole), 0
    for length in parts:
        piece = target[offset:offset + 1024 * length]
        if asynchronous:
            assert handle.async_pread(piece, folder / "file", offset) == 0
        else:
            assert handle.sync_pread(piece, folder / "file", offset) == 1
        offset += 1024 * length
    assert handle.wait() == (len(parts) if asynchronous else 0)
    assert torch.equal(target, whole)


def test_parts_of_a_large_file_come_from_several_handles_in_any_order(folder):
    whole, step = random_tensor(7_000_001), 1_234_567
    handles = [make(), weightfs.aio_handle(), weightfs.aio_handle(num_threads=3)]
    for turn, offset in enumerate(sorted(range(0, whole.numel(), step), key=lambda at: at * 7 % 11)):
        assert handles[turn % 3].async_pwrite(whole[offset:offset + step], folder / "file", offset) == 0
    assert sum(handle.wait() for handle in handles) == len(range(0, whole.numel(), step))
    assert (folder / "file").read_bytes() == content(whole)


def test_the_descriptor_stays_the_callers(folder):
    handle, tensor = make(), random_tensor(1_000_001)
    descriptor = os.open(folder / "file", os.O_RDWR | os.O_CREAT)
    assert handle.async_pwrite(tensor, descriptor) == 0
    os.close(descriptor)   # allowed at once, because the handle has its own copy
    assert handle.wait() == 1
    assert (folder / "file").read_bytes() == content(tensor)


def test_a_descriptor_that_cannot_be_written_so_is_named(folder):
    with open(folder / "file", "wb") as stream:
        with pytest.raises(OSError, match=f"of descriptor {stream.fileno()}: an atomic write replaces"):
            make().write_from(b"new", stream.fileno(), atomic=True)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.bfloat16, torch.float32, torch.int64,
                                   torch.complex64])
def test_locked_tensors_are_known_to_every_handle(dtype):
    first, second = make(), weightfs.aio_handle()
    tensor = first.new_cpu_locked_tensor(1000, torch.empty(3, dtype=dtype))
    assert tensor.shape == (1000,) and tensor.dtype == dtype and not tensor.any()
    assert tensor.data_ptr() % 4096 == 0
    tensor.fill_(3)
    for handle in (first, second):
        assert handle.is_pinned(tensor)
        assert handle.is_pinned(tensor[10:20])
        assert handle.is_pinned(tensor.view(10, 100).t())
        assert not handle.is_pinned(torch.empty(1000, dtype=dtype))
    del first
    assert second.is_pinned(tensor)
    assert second.free_cpu_locked_tensor(tensor) is True
    assert not second.is_pinned(tensor)
    assert second.free_cpu_locked_tensor(tensor) is False
    assert second.free_cpu_locked_tensor(torch.empty(10)) is False
    assert (tensor == 3).all()   # the memory is freed with its last user


def test_both_spellings_of_the_example():
    handle = weightfs.aio_handle()
    assert handle.new_cpu_locked_tensor(num_elem=5, example_tensor=torch.empty(0)).shape == (5,)
    assert handle.new_cpu_locked_tensor(num_elem=5, example_tenosr=torch.empty(0)).shape == (5,)
    with pytest.raises(TypeError):
        handle.new_cpu_locked_tensor(5)


def test_locked_memory_is_counted_by_the_kernel_and_given_back():
    def locked_kib():
        with open("/proc/self/status", encoding="ascii") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmLck"))

    handle, before = weightfs.aio_handle(), locked_kib()
    tensor = handle.new_cpu_locked_tensor(8 << 20, torch.empty(0, dtype=torch.uint8))
    assert locked_kib() == before + 8192
    view = tensor[5:]
    del tensor
    assert handle.is_pinned(view)
    del view
    assert locked_kib() == before


@pytest.mark.parametrize("call", ["handle.sync_pwrite(tensor, 'file')",
                                  "handle.async_pwrite(tensor, 'file'); handle.wait()"], ids=["sync", "wait"])
def test_other_threads_run_while_one_waits(child, folder, call):
    """The wait ends only after another thread has run many times."""
    assert child(f"""
import os, threading, time, torch, weightfs
from operations import StandingWrite, once_waiting
os.chdir({str(folder)!r})
handle, tensor = weightfs.aio_handle(4096, 1, True), torch.ones(1 << 20, dtype=torch.uint8)
standing, waits = StandingWrite(handle, tensor, "standing"), threading.Event()
def work():
    waits.wait()
    for _ in range(100):
        time.sleep(0)   # another thread may run
    standing.go()
threading.Thread(target=work).start()
with once_waiting(waits.set):
    {call}
print(standing.future.done())
""") == "True\n"


def test_threads_share_one_handle(folder):
    handle, failures = weightfs.aio_handle(65536, 8, False, True, 2), []

    def work(seed):
        tensor, target = random_tensor(300_000 + seed, seed=seed), torch.empty(300_000 + seed, dtype=torch.uint8)
        for _ in range(20):
            wrote = handle.sync_pwrite(tensor, folder / f"{seed}")
            read = handle.sync_pread(target, folder / f"{seed}")
            if wrote != 1 or read != 1 or not torch.equal(target, tensor):
                failures.append((seed, wrote, read))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
