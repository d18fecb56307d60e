# SPDX-License-Identifier: Apache-2.0
"""Which objects an operation under way keeps alive, and for how long."""

import copy
import gc
import pickle
import threading
import weakref

import numpy
import pytest
import torch

import weightfs
from tensors import content, random_tensor
from weightfs._core import opened


def test_a_tensor_may_take_other_memory_while_an_operation_is_under_way(child, folder):
    out = child(f"""
import torch, weightfs
path = {str(folder / "file")!r}
handle = weightfs.aio_handle(65536, 2, True, False, 2)
for i in range(12):
    tensor = torch.full((64 << 20,), i, dtype=torch.uint8)
    assert handle.async_pwrite(tensor, path) == 0
    if i % 2:
        tensor.data = torch.empty(0, dtype=torch.uint8)
    else:
        tensor.set_()
    other = torch.full((64 << 20,), 255, dtype=torch.uint8)
    assert handle.wait() == 1
    target = torch.empty(64 << 20, dtype=torch.uint8)
    assert handle.async_pread(target, path) == 0
    kept = target.view(-1)
    target.data = torch.empty(0, dtype=torch.uint8)
    assert handle.wait() == 1
    assert (kept == i).all()
print("done")
""")
    assert out == "done\n"


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_handle_is_not_copied(handle, folder, copied):
    with pytest.raises(TypeError, match="cannot be copied or pickled; create one in each process"):
        copied(handle)
    gc.collect()
    assert handle.sync_pwrite(torch.ones(10), folder / "file") == 1


class Counted(numpy.ndarray):
    """An array whose lifetime can be observed."""


def watched(size):
    array = numpy.ones(size, dtype=numpy.uint8).view(Counted)
    return array, weakref.ref(array)


LEFT = """
import gc, weakref
from weightfs._core.opened import Opened

class Native:   # as if it were closed in a callback
    def close(self): pass
    def join(self): pass

class Operation:
    is_done = False
    def done(self): return self.is_done
    def error(self): return None
    def cancelled(self): return False
    def wait(self, timeout): print("waits for", self.name)

class Memory:
    finish, nbytes = None, 1

def leave(name):
    opened, memory, operation = Opened(Native()), Memory(), Operation()
    operation.name = name
    opened._pending.start(memory, lambda: operation)
    opened.close()
    return operation, weakref.ref(memory)

first, memory = leave("the first")
second, of_second = leave("the second")
gc.collect()
assert memory() and of_second()
first.is_done = True
Opened(Native()).close()
gc.collect()
print("released" if memory() is None else "kept", flush=True)
if os.fork() == 0:
    sys.exit(0)
os.wait()
"""


def test_an_operation_that_a_close_leaves_keeps_its_memory_and_delays_the_exit(child):
    assert child("import os, sys\n" + LEFT) == "released\nwaits for the second\n"


class LosesOperations:
    """A native handle whose writes begin, but raise MemoryError instead of returning the operation."""

    def __init__(self, native):
        self._native = native

    def __getattr__(self, name):
        return getattr(self._native, name)

    def write(self, *arguments):
        self._native.write(*arguments)
        raise MemoryError


def test_memory_of_an_operation_that_was_lost_when_it_began_is_released_by_the_close(folder):
    handle = weightfs.aio_handle()
    handle._opened = LosesOperations(handle._opened)
    array, alive = watched(8 << 20)
    with pytest.raises(MemoryError):
        handle.async_pwrite(array, folder / "file")
    del array
    gc.collect()
    assert alive() is not None   # the write may be under way
    handle.close()
    gc.collect()
    assert alive() is None
    assert handle._pending not in opened._left


def test_memory_of_a_lost_operation_stays_while_another_thread_uses_the_handle(local):
    handle = weightfs.aio_handle(4096, 1, True)
    handle._opened = LosesOperations(handle._opened)
    inside, goes = threading.Event(), threading.Event()

    def stand(*_):
        inside.set()
        goes.wait(100)

    other = threading.Thread(target=handle.write_from, args=(random_tensor(1 << 20), local / "other"),
                             kwargs={"progress": stand})
    other.start()
    inside.wait(100)
    array, alive = watched(8 << 20)
    with pytest.raises(MemoryError):
        handle.async_pwrite(array, local / "file")
    del array
    handle.close()
    gc.collect()
    assert alive() is not None
    goes.set()
    other.join()


def test_completed_operations_are_released_after_an_unreported_failure(handle, folder):
    assert handle.async_pwrite(torch.ones(8), "/dev/full", 0) == 0
    watches = []
    for i in range(40):
        array, watch = watched(100_000)
        assert handle.async_pwrite(array, folder / f"{i}") == 0
        watches.append(watch)
        del array
        while handle.pending():
            pass
    gc.collect()
    assert sum(watch() is not None for watch in watches) <= 3
    with pytest.raises(OSError) as caught:
        handle.wait()
    assert (caught.value.completed, caught.value.shape) == (40, (8,))


def test_failed_operations_keep_no_memory(handle):
    array, watch = watched(100_000)
    assert handle.async_pwrite(array, "/dev/full", 0) == 0
    del array
    while handle.pending():
        pass
    for _ in range(2):
        assert handle.async_pwrite(torch.ones(8), "/dev/null", 0) == 0
    gc.collect()
    assert watch() is None
    with pytest.raises(OSError, match=r"\(100000,\)") as caught:
        handle.wait()
    assert caught.value.shape == (100_000,)
    assert len(caught.value.errors) == 1
    assert handle.wait() == 0


def test_errors_come_in_the_order_of_their_start(handle, folder):
    for size in range(1, 30):
        assert handle.async_pwrite(torch.ones(size), "/dev/full", 0) == 0
        assert handle.async_pwrite(torch.ones(size), folder / "file") == 0
    with pytest.raises(OSError) as caught:
        handle.wait()
    assert [error.shape for error in caught.value.errors] == [(size,) for size in range(1, 30)]


def test_a_validated_write_keeps_its_tensor_until_it_is_compared(handle, folder):
    tensor = random_tensor(100_000)
    assert handle.pwrite(tensor.clone(), folder / "file", True, True) == 0
    for i in range(10):
        assert handle.async_pwrite(tensor, folder / f"{i}") == 0
    assert handle.wait() == 11
    assert (folder / "file").read_bytes() == content(tensor)


def test_operations_with_futures_are_not_counted(handle, folder):
    tensor = random_tensor(100_000)
    assert handle.write_async(tensor, folder / "file").result() == tensor.nbytes
    assert handle.sync_pwrite(tensor, folder / "file") == 1
    handle.read_async(torch.empty_like(tensor), folder / "file")
    assert handle.async_pwrite(tensor, folder / "other") == 0
    assert handle.wait() == 1
    assert handle.pending() == 0
