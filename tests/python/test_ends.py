# SPDX-License-Identifier: Apache-2.0
"""Threads, signals and forks during an operation."""

import signal
import subprocess
import sys

import pytest

from operations import HERE_ON_PATH

COMMON = """
import os, signal, sys, threading, time, torch, weightfs
from operations import StandingWrite, once_waiting
tensor = torch.ones(8 << 20, dtype=torch.uint8)
handle = weightfs.aio_handle(4096, 1, True, False, 1)
"""

IN_THREADS = {
    "sync": "handle.sync_pwrite(tensor, 'file')",
    "wait": "handle.async_pwrite(tensor, 'file'); handle.wait()",
    "future": "handle.write_async(tensor, 'file').result()",
    "callback": "handle.write_async(tensor, 'file', progress=lambda *_: None).wait()",
}


@pytest.mark.limit(300)
@pytest.mark.parametrize("call", IN_THREADS.values(), ids=IN_THREADS.keys())
def test_the_interpreter_may_end_while_a_daemon_thread_is_in_a_call(child, call):
    for calls in (0, 1, 6):
        out = child(COMMON + f"""
import logging
logging.disable()
ended = threading.Semaphore(0)
threading.excepthook = lambda _: None   # CPython may abort when a daemon thread prints while it ends
def work():
    while True:
        {call}
        ended.release()
for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
for _ in range({calls}):
    ended.acquire()
print("end")
""")
        assert out == "end\n"


FORKED = COMMON + """
tensor = torch.ones(64 << 20, dtype=torch.uint8)
small, descriptor = torch.ones(8), os.open("file", os.O_RDWR | os.O_CREAT)
assert handle.async_pwrite(tensor, "pending") == 0
future = handle.write_async(tensor, "other")
calls = {
    "wait": handle.wait, "pending": handle.pending, "direct": lambda: handle.direct_operations,
    "read_into": lambda: handle.read_into(small, "file"), "write_async": lambda: handle.write_async(small, "file"),
    "save_many": lambda: handle.save_many({"a": small}, "."), "load_many": lambda: handle.load_many({"a": small}, "."),
    "locked": lambda: handle.new_cpu_locked_tensor(8, small), "pinned": lambda: handle.is_pinned(small),
    "future": future.result, "done": future.done, "cancel": future.cancel, "bytes": lambda: future.bytes_done,
}
numbers = {
    "async": lambda: handle.async_pwrite(small, "file"), "sync": lambda: handle.sync_pwrite(small, "file"),
    "descriptor": lambda: handle.async_pwrite(small, descriptor), "read": lambda: handle.read(small, "file", False),
    "pread": lambda: handle.pread(small, "file", False, True),
}
held, over = threading.Event(), threading.Event()
def hold():
    with handle._pending._lock:   # the child does not have the thread that has the lock
        held.set()
        over.wait()
holder = threading.Thread(target=hold)
holder.start()
held.wait()
child = os.fork()
if child == 0:
    import logging
    logging.disable()
    for name, call in calls.items():
        try:
            print(name, "gave", call())
        except PermissionError as error:
            assert "forked" in str(error), error
    for name, call in numbers.items():
        assert call() == -1, name
        assert handle.last_error.errno == 1, name
    assert "another process" in repr(future)
    own = weightfs.aio_handle()
    assert own.sync_pwrite(small, "own") == 1
    own.close()
    handle.close()
    print("child", flush=True)
    sys.exit(0)
over.set()
holder.join()
assert os.waitpid(child, 0)[1] == 0
assert handle.wait() == 1
print("parent")
"""


def test_every_call_in_a_forked_child_raises(child):
    assert child(FORKED) == "child\nparent\n"


LONG_CALLS = {
    "sync_pwrite": "handle.sync_pwrite(tensor, 'file')",
    "write_from": "handle.write_from(tensor, 'file')",
    "wait": "handle.async_pwrite(tensor, 'file'); handle.wait()",
}


@pytest.mark.parametrize("call", LONG_CALLS.values(), ids=LONG_CALLS.keys())
def test_ctrl_c_ends_a_long_call(tmp_path, call):
    # The operation waits until Ctrl-C is noticed, and then continues 4 KiB at a time. A canceled operation rolls its
    # new file back, or is still pending.
    code = HERE_ON_PATH + COMMON + f"""
tensor = torch.ones(1 << 30, dtype=torch.uint8)
standing = StandingWrite(handle, torch.ones(1), "/dev/null", file_offset=0)
def pressed(*_):
    standing.go()
    raise KeyboardInterrupt
signal.signal(signal.SIGINT, pressed)
try:
    with once_waiting(lambda: print("go", flush=True)):
        {call}
    print("ended by itself")
except KeyboardInterrupt:
    standing.future.wait()
    print("early" if handle.pending() or not os.path.exists("file") else "late")
    if handle.pending():
        handle.close()
"""
    with subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "go\n"
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
        assert process.wait(60) == 0
    assert rest == "early\n"


def test_an_interrupted_wait_loses_no_counts(child):
    assert child(COMMON + """
class Alarm(Exception):
    pass
def ring():
    raise Alarm
standing = StandingWrite(handle, tensor, "standing")
for i in range(4):
    assert handle.async_pwrite(tensor, f"{i}") == 0
try:
    with once_waiting(ring):
        handle.wait()
    print("ended by itself")
except Alarm:
    print("alarm")
standing.go()
assert handle.wait() == 4
""") == "alarm\n"
