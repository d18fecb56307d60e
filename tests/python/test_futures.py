# SPDX-License-Identifier: Apache-2.0
"""Futures: each operation has its own state, result and callbacks."""

import asyncio
import concurrent.futures
import errno
import pickle
import subprocess
import sys
import threading
import types

import pytest
import torch

import weightfs
from operations import HERE_ON_PATH, StandingWrite, hold_until_closed
from tensors import content, random_tensor
from weightfs._core.future import Pending
from weightfs._core.memory import Memory, _Scatter


def slow_handle():
    """Transfers one block of 4 KiB at a time, so an operation is still under way when the next line runs."""
    return weightfs.aio_handle(4096, 1, True)


def test_a_future_gives_the_bytes_or_the_error(folder, handle):
    tensor = random_tensor(1_000_001)
    future = handle.write_async(tensor, folder / "file")
    assert future.result(timeout=60) == future.nbytes == future.bytes_done == tensor.nbytes
    assert future.done() and not future.cancelled() and not future.running()
    assert future.exception() is None
    assert (folder / "file").read_bytes() == content(tensor)
    target = torch.empty_like(tensor)
    assert handle.read_async(target, folder / "file").result() == tensor.nbytes
    assert torch.equal(target, tensor)

    failed = handle.write_async(torch.ones(3, 4), "/dev/full", 0)
    with pytest.raises(OSError, match="No space left") as caught:
        failed.result()
    assert (caught.value.errno, caught.value.filename, caught.value.shape) == (28, "/dev/full", (3, 4))
    assert failed.exception() is caught.value
    # All errors belong to the futures.
    assert handle.wait() == 0
    with pytest.raises(FileNotFoundError):
        handle.read_async(target, folder / "missing")


def test_a_timeout_is_a_number(local, handle):
    future = handle.write_async(torch.ones(10), local / "file")
    for call in (future.wait, future.result, future.exception):
        with pytest.raises(ValueError, match="nan"):
            call(timeout=float("nan"))
    assert future.wait(timeout=float("inf"))


def test_waiting_ends_with_the_timeout(local):
    handle = slow_handle()
    standing = StandingWrite(handle, random_tensor(1 << 20), local / "file")
    future = standing.future
    assert future.wait(0) is False
    assert future.running()
    with pytest.raises(TimeoutError):
        future.result(timeout=0.01)
    standing.go()
    assert future.wait(60) is True
    assert future.result() == 1 << 20


def test_a_timeout_is_of_each_class_that_python_has_for_it(local):
    handle = slow_handle()
    standing = StandingWrite(handle, random_tensor(1 << 20), local / "file")
    for call in (standing.future.result, standing.future.exception):
        with pytest.raises(concurrent.futures.TimeoutError) as caught:
            call(timeout=0)
        assert isinstance(caught.value, TimeoutError)   # another class before Python 3.11
    standing.go()


def test_an_awaited_failure_was_asked_for(handle):
    async def work(future):
        with pytest.raises(OSError, match="No space left"):
            await future
        return future

    assert not asyncio.run(work(handle.write_async(bytearray(10), "/dev/full", 0)))._failed_unasked()


def test_a_signal_handler_that_raises_when_a_wait_begins_leaves_no_future_without_its_end(local, handle, monkeypatch):
    """The exception comes between any two lines of the registration."""
    for line in range(1, 4):
        standing = StandingWrite(handle, bytearray(10), local / "file")
        seen = [0]

        def trace(frame, event, _):
            if frame.f_code.co_name != "_condition":
                return None
            seen[0] += event == "line"
            if seen[0] == line + 1:
                raise KeyboardInterrupt
            return trace

        sys.settrace(trace)
        try:
            with pytest.raises(KeyboardInterrupt):
                standing.future.add_done_callback(lambda _: None)
        finally:
            sys.settrace(None)
        standing.go()
        assert concurrent.futures.wait([standing.future], 60).not_done == set()


def test_a_copy_that_fails_fails_for_everybody():
    """The scattering of a GPU tensor that is not contiguous, by a thread and by a signal handler within it."""
    class Fails:
        inner = None

        def copy_(self, source):
            if self.inner is None:
                with pytest.raises(RuntimeError) as caught:
                    self.inner = True
                    scatter()
                self.inner = caught.value
            raise RuntimeError("no copy")

    target = Fails()
    scatter = _Scatter(target, object())
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no copy"):
            scatter()


def test_a_cancelled_operation_stops_and_leaves_no_file(local):
    handle = slow_handle()
    standing = StandingWrite(handle, random_tensor(1 << 20), local / "first")
    first, queued = standing.future, handle.write_async(random_tensor(1 << 20), local / "queued")
    assert queued.cancel() and first.cancel()
    standing.go()
    for future in (first, queued):
        assert future.wait(60)
        assert future.cancelled()
        assert future.bytes_done < future.nbytes
        with pytest.raises(concurrent.futures.CancelledError):
            future.result()
        assert future.cancel() is True
    assert list(local.iterdir()) == []
    assert handle.wait() == 0


def test_callbacks_run_once_and_may_start_operations(folder, handle):
    tensor, seen, refused, ended = random_tensor(100_000), [], [], threading.Event()

    def then(future):
        seen.append((future.done(), future.exception()))
        second = handle.write_async(tensor, folder / "second")
        # If the operation had already ended, the callback runs on the caller's thread, which may wait.
        if threading.current_thread() is not threading.main_thread():
            try:
                second.result()   # may have ended by now
            except RuntimeError as error:
                refused.append(str(error))
        second.add_done_callback(lambda _: ended.set())

    first = handle.write_async(tensor, folder / "first")
    first.add_done_callback(then)
    assert ended.wait(60)
    assert seen == [(True, None)]
    assert all("callback" in text for text in refused)
    first.add_done_callback(seen.append)
    assert seen[1] is first
    assert (folder / "second").read_bytes() == content(tensor)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_callback_that_raises_harms_nobody(folder, handle):
    future = handle.write_async(random_tensor(1000), folder / "file", progress=lambda done, total: 1 / 0)
    future.add_done_callback(lambda _: 1 / 0)
    assert future.result() == 1000
    assert handle.wait() == 0


def test_progress_grows_to_the_total(folder):
    handle, calls = weightfs.aio_handle(65536), []
    tensor = random_tensor(10_000_000)
    handle.write_from(tensor, folder / "file", progress=lambda done, total: calls.append((done, total)))
    assert calls == sorted(calls)
    assert calls[-1] == (tensor.nbytes, tensor.nbytes)
    assert 10 < len(calls) <= 101


def test_the_functions_of_concurrent_futures_accept_a_future(folder, handle):
    tensor = random_tensor(100_000)
    futures = [handle.write_async(tensor, folder / f"{i}") for i in range(20)]
    assert all(isinstance(future, concurrent.futures.Future) for future in futures)
    done, pending = concurrent.futures.wait(futures, timeout=60)
    assert (done, pending) == (set(futures), set())
    with weightfs.reader(folder / "3") as reader:
        futures = [reader.read_async(i, bytearray(100)) for i in range(20)]
        assert set(concurrent.futures.as_completed(futures, timeout=60)) == set(futures)
        assert all(future.result() == 100 for future in futures)
        assert concurrent.futures.wait(futures).not_done == set()   # futures that are done already

        async def wrapped():
            return await asyncio.gather(*(asyncio.wrap_future(reader.read_async(i, bytearray(7))) for i in range(9)))

        assert asyncio.run(wrapped()) == [7] * 9


def test_waiting_for_the_first_future_ends_with_it(local):
    handle, other = slow_handle(), weightfs.aio_handle()
    standing = StandingWrite(handle, random_tensor(1 << 20), local / "file")
    quick = other.write_async(bytearray(10), local / "quick")
    done, pending = concurrent.futures.wait([standing.future, quick], 60, concurrent.futures.FIRST_COMPLETED)
    assert (done, pending) == ({quick}, {standing.future})
    failed = other.write_async(bytearray(10), "/dev/full", 0)
    done, pending = concurrent.futures.wait([standing.future, failed], 60, concurrent.futures.FIRST_EXCEPTION)
    assert (done, pending) == ({failed}, {standing.future})
    with pytest.raises(concurrent.futures.TimeoutError):
        list(concurrent.futures.as_completed([standing.future], timeout=0.01))
    standing.go()
    assert list(concurrent.futures.as_completed([standing.future], timeout=60)) == [standing.future]


def test_a_cancelled_future_wakes_those_who_wait(local):
    handle = slow_handle()
    standing = StandingWrite(handle, random_tensor(1 << 20), local / "first")
    queued, seen = handle.write_async(random_tensor(1 << 20), local / "first"), threading.Event()
    queued.add_done_callback(lambda future: future.cancelled() and seen.set())
    with concurrent.futures.ThreadPoolExecutor() as pool:
        waiting = pool.submit(concurrent.futures.wait, [queued], 60)
        assert queued.cancel()
        assert not queued.done()   # the kernel or the handle may still use the memory
        standing.go()
        assert waiting.result() == ({queued}, set())
    assert seen.wait(60) and queued.cancelled()
    for ask in (queued.result, queued.exception):
        with pytest.raises(concurrent.futures.CancelledError):
            ask()
    assert standing.future.result() == 1 << 20
    assert not standing.future.cancel()


def test_a_cancel_that_is_accepted_is_the_outcome(folder):
    with weightfs.aio_handle() as handle:
        for i in range(200):
            future = handle.write_async(bytearray(5000 * i), folder / f"{i}")
            accepted = future.cancel()
            assert future.wait(60)
            assert future.cancelled() == accepted == future.cancel()


def test_a_future_that_several_threads_wait_for(folder, handle):
    for i in range(30):
        future = handle.write_async(random_tensor(200_000), folder / f"{i}")
        called = []
        future.add_done_callback(called.append)
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            waits = [pool.submit(ask) for ask in [future.result, lambda: concurrent.futures.wait([future]), future.wait,
                                                  lambda: next(concurrent.futures.as_completed([future]))] * 2]
            results = [wait.result(60) for wait in waits]
        assert results[0] == 200_000 and called == [future]


def test_await(folder, handle):
    tensors = [random_tensor(200_000, seed=i) for i in range(5)]

    async def work():
        assert await asyncio.gather(*(handle.write_async(tensor, folder / f"{i}") for i, tensor in enumerate(tensors))
                                    ) == [200_000] * 5
        targets = [torch.empty_like(tensor) for tensor in tensors]
        for i, target in enumerate(targets):
            await handle.read_async(target, folder / f"{i}")
        with pytest.raises(OSError, match="No space left"):
            await handle.write_async(tensors[0], "/dev/full", 0)
        return targets

    assert all(torch.equal(a, b) for a, b in zip(asyncio.run(work()), tensors))


def test_a_cancelled_task_cancels_its_operation(local):
    handle = slow_handle()

    async def work():
        standing = StandingWrite(handle, random_tensor(1 << 20), local / "file")
        future = standing.future

        async def waits():
            await future

        task = asyncio.create_task(waits())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0)
        standing.go()
        with pytest.raises(asyncio.CancelledError):
            await task
        return future

    future = asyncio.run(work())
    assert future.wait(60) and future.cancelled()


def test_the_memory_lives_as_long_as_its_operation(local):
    handle = slow_handle()
    assert handle.async_pwrite(random_tensor(16 << 20), local / "file") == 0   # no other reference to the tensor exists
    handle.write_async(random_tensor(16 << 20, seed=2), local / "other")
    assert handle.wait() == 1
    assert (local / "file").read_bytes() == content(random_tensor(16 << 20))
    assert (local / "other").read_bytes() == content(random_tensor(16 << 20, seed=2))


NEVER_ASKED = "canceled by close() or at exit, and the outcome was never asked for: write of "


def logged(caplog):
    """The names of the files whose canceled writes were logged."""
    messages = [record.getMessage() for record in caplog.records if "cancel" in record.getMessage()]
    assert all(message.startswith(NEVER_ASKED) and message.endswith(" was cancelled") for message in messages)
    return [message.split("/")[-1].split()[0] for message in messages]


def test_a_cancellation_by_close_is_logged_once_if_nobody_asks_for_the_outcome(local, caplog):
    handle = slow_handle()
    names = ("dropped", "kept", "got", "failed", "told", "cancelled")
    hold_until_closed(handle, local / "file", *(local / name for name in names))
    _, *kept, cancelled = [handle.write_async(random_tensor(1 << 20), local / name) for name in names]
    del _
    assert cancelled.cancel()
    del cancelled
    handle.close()
    assert logged(caplog) == ["dropped"]
    with pytest.raises(concurrent.futures.CancelledError):
        kept[1].result()
    with pytest.raises(concurrent.futures.CancelledError):
        kept[2].exception()
    assert kept[3].cancelled()
    assert kept[0].done() and repr(kept[0]) == "<weightfs.Future cancelled, 0 of 1048576 bytes>"
    kept.clear()
    assert logged(caplog) == ["dropped", "kept"]
    handle.close()
    del handle
    assert logged(caplog) == ["dropped", "kept"]


def test_a_cancellation_by_the_last_reference_of_a_handle_is_logged(local, caplog):
    handle = slow_handle()
    hold_until_closed(handle, local / "file")
    future = handle.write_async(random_tensor(1 << 20), local / "file")
    del handle
    assert logged(caplog) == []
    del future
    assert logged(caplog) == ["file"]


def test_an_awaited_cancellation_is_not_logged(local, caplog):
    async def work():
        handle = slow_handle()
        hold_until_closed(handle, local / "file")
        future = handle.write_async(random_tensor(1 << 20), local / "file")
        waits = asyncio.wrap_future(future)
        handle.close()
        with pytest.raises(asyncio.CancelledError):
            await waits

    asyncio.run(work())
    assert logged(caplog) == []


AT_EXIT = HERE_ON_PATH + """
import os, weightfs
from operations import hold_until_closed
handle = weightfs.aio_handle(4096, 1, True)
hold_until_closed(handle, "file", "one", "two")
future, other = handle.write_async(bytearray(1000), "one"), handle.write_async(bytearray(1000), "two")
"""


@pytest.mark.parametrize(("rest", "lines"), [
    ("", 2),
    ("handle.close()", 2),
    ("del handle; del future", 2),
    ("other.cancel(); handle.close()", 1),
    ("handle.close(); other.exception() if not other.cancelled() else None", 1),
    # A child has the futures of its parent, which alone logs them.
    ("handle.close()\nif os.fork() == 0: del future, other; raise SystemExit\nos.wait()", 2),
    ("if os.fork() == 0: del handle, future, other; raise SystemExit\nos.wait()", 2),
], ids=["open", "closed", "dropped", "cancelled", "asked", "forked", "forked before the close"])
def test_a_cancellation_at_exit_is_logged_once(tmp_path, rest, lines):
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", AT_EXIT + rest], cwd=tmp_path, timeout=100,
                          capture_output=True, text=True, check=True)
    assert done.stdout == ""
    logged = done.stderr.splitlines()
    assert len(logged) == lines and all(line.startswith(NEVER_ASKED) for line in logged), done.stderr


def test_what_a_close_in_a_callback_cancels_is_logged_at_exit(tmp_path):
    done = subprocess.run([sys.executable, "-c", """
import os, threading, weightfs
handle, goes, closed = weightfs.aio_handle(4096, 1, True), threading.Event(), threading.Event()
def close(*_):
    goes.wait()
    handle.close()
    closed.set()
open("file", "x").close()
os.link("file", "one")
os.link("file", "two")
handle.write_async(bytearray(1), "file", 0, progress=close)
future = handle.write_async(bytearray(1 << 20), "one")
assert handle.async_pwrite(bytearray(1 << 20), "two") == 0
goes.set()
closed.wait()
"""], cwd=tmp_path, timeout=100, capture_output=True, text=True, check=True)
    by_wait, by_future = sorted(done.stderr.splitlines())
    assert by_wait == "1 operations were canceled: the handle was closed before wait()"
    assert by_future.startswith(NEVER_ASKED)


def test_an_atomic_write_shows_the_old_file_or_the_new_one(folder, handle):
    old, new = random_tensor(3_000_000), random_tensor(2_000_001, seed=2)
    handle.write_from(old, folder / "file", durable=True)
    seen = []
    handle.write_from(new, folder / "file", durable=True, atomic=True,
                      progress=lambda *_: seen.append((folder / "file").read_bytes()))
    assert set(seen) == {content(old)}
    assert (folder / "file").read_bytes() == content(new)
    assert [path.name for path in folder.iterdir()] == ["file"]
    with pytest.raises(OSError):
        handle.write_from(new, folder / "file", 0, atomic=True)


def test_a_closed_handle_raises(folder):
    with weightfs.aio_handle() as handle:
        future = handle.write_async(random_tensor(1 << 20), folder / "file")
    assert future.done()
    with pytest.raises(ValueError, match="closed"):
        handle.sync_pwrite(random_tensor(10), folder / "file")
    handle.close()


def test_an_unknown_option_is_named_after_the_method(local, handle):
    for name in ("read_async", "read_into", "write_async", "write_from", "save_many", "load_many"):
        with pytest.raises(TypeError, match=rf"\b{name}\(\) got an unexpected keyword argument 'durabel'"):
            getattr(handle, name)(bytearray(1), local / "file", durabel=True)
    assert not (local / "file").exists()


def test_a_timeout_can_be_pickled(folder):
    with slow_handle() as handle:
        standing = StandingWrite(handle, random_tensor(8192), "/dev/null", file_offset=0)
        with pytest.raises(TimeoutError) as caught:
            standing.future.result(timeout=0)
        standing.go()
    copied = pickle.loads(pickle.dumps(caught.value))
    assert isinstance(copied, concurrent.futures.TimeoutError) and isinstance(copied, TimeoutError)
    assert copied.args == caught.value.args


@pytest.fixture
def ended_read(monkeypatch):
    """Makes an operation that has ended and the memory of a strided GPU tensor, the first copy of which is interrupted.
    """
    outcomes = [KeyboardInterrupt(), None]
    target, source = torch.zeros(4), torch.ones(4)

    def copy(scatter, source):
        outcome = outcomes.pop(0)
        if outcome is not None:
            raise outcome
        target.copy_(source)

    monkeypatch.setattr(_Scatter, "_copy", copy)
    operation = types.SimpleNamespace(done=lambda: True, cancelled=lambda: False, cancel=lambda: False,
                                      error=lambda: None)
    memory = Memory(target.data_ptr(), 4, [4], None, target, "a tensor",
                    finish=_Scatter(target, source))
    return operation, memory, target


def test_a_read_whose_copy_was_interrupted_copies_again(ended_read):
    operation, memory, target = ended_read
    future = weightfs.Future(operation, memory, lambda: None)
    with pytest.raises(KeyboardInterrupt):
        future.result()
    assert future.result() == memory.nbytes
    assert target.eq(1).all()


def test_a_wait_whose_copy_was_interrupted_copies_again(ended_read):
    operation, memory, target = ended_read
    pending = Pending()
    future = pending.start(memory, lambda: operation, waited=())
    with pytest.raises(KeyboardInterrupt):
        pending.take_done()
    assert pending.take_done() == [future] and future.exception() is None
    assert target.eq(1).all()


def test_a_signal_does_not_take_a_failure_from_wait(ended_read, monkeypatch):
    operation, memory, _ = ended_read
    operation.error = lambda: OSError(errno.EIO, "lost")
    pending, set_exception, interrupts = Pending(), weightfs.Future.set_exception, [KeyboardInterrupt]

    def interrupted(future, error):
        if interrupts:
            raise interrupts.pop()
        set_exception(future, error)

    monkeypatch.setattr(weightfs.Future, "set_exception", interrupted)
    memory.finish = None
    future = pending.start(memory, lambda: operation, waited=("file", 0))
    with pytest.raises(KeyboardInterrupt):
        pending.under_way()
    pending.under_way()
    assert pending.take_done() == [future] and future.exception().errno == errno.EIO
    assert memory.owner is None, "the memory of a failed operation is not compared, so it is released"
