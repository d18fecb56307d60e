# SPDX-License-Identifier: Apache-2.0
"""Signals whose handlers use the handle, or end its operation."""

import pytest

COMMON = """
import contextlib, os, signal, sys, threading, torch, weightfs
from operations import LongWrite, once_waiting
handle = weightfs.aio_handle(4096, 1, True, False, 1, direct="never")
large, small = torch.ones(1 << 30, dtype=torch.uint8), torch.ones(5000, dtype=torch.uint8)
"""

# A call made after it waits for the signal, which ends this write.
STANDING = """
standing = LongWrite(handle, large, "long")
"""

# Signals come one after the other. If a handler took longer than their interval, handlers would nest without end.
ALARMS = """
def ring_again(seconds):
    if ringing:
        signal.setitimer(signal.ITIMER_REAL, seconds)
def ring_no_more():
    global ringing
    ringing = False
    signal.setitimer(signal.ITIMER_REAL, 0)
ringing = True
"""


def test_a_handler_may_use_the_handle_that_its_thread_uses(child):
    out = child(COMMON + ALARMS + """
handled = 0
def save(*_):
    global handled
    handled += 1
    assert handle.async_pwrite(small, "by handler") == 0
    if handled % 3 == 0:
        assert handle.sync_pwrite(small, "by handler") > 0
    if handled % 7 == 0:
        handle.wait()
    ring_again(0.0003)
signal.signal(signal.SIGALRM, save)
ring_again(0.0003)
started = 0
while handled < 1500 or started < 3000:
    assert handle.async_pwrite(small, "file") == 0
    assert handle.write_async(small, "other").result() == 5000
    started += 2
    if started % 10 == 0:
        handle.wait()
ring_no_more()
handle.wait()
print(len(handle._pending._futures), handle.pending(), os.path.getsize("by handler"), os.path.getsize("file"))
""")
    assert out == "0 0 5000 5000\n"


def test_a_handlers_failures_are_reported_once(child):
    out = child(COMMON + ALARMS + """
import logging
logging.disable()
failed, handled = 0, 0
def fail(*_):
    global handled
    handled += 1
    assert handle.async_pwrite(small, "/dev/full", 0) == 0
    ring_again(0.0005)
signal.signal(signal.SIGALRM, fail)
ring_again(0.0005)
while handled < 500:
    try:
        handle.async_pwrite(small, "file")
        handle.wait()
    except OSError as error:
        failed += len(error.errors)
ring_no_more()
try:
    handle.wait()
except OSError as error:
    failed += len(error.errors)
print(failed == handled, failed, handled)
""")
    assert out.startswith("True"), out


CTRL_C = """
def press(*_):
    global pressed
    if not pressed:
        pressed = True
        os.kill(os.getpid(), signal.SIGINT)
        seen.wait(100)   # the handler runs here, if this is the thread of the signals
def see(*_):
    seen.set()
    if standing is not None:
        standing.go()
    raise KeyboardInterrupt
signal.signal(signal.SIGINT, see)
pressed, seen, standing = False, threading.Event(), None
"""
INTERRUPTED = {
    "write_from": "handle.write_from(large, 'file', progress=press)",
    "raised": "handle.write_from(large, 'file', progress=raising)",
    "result": "handle.write_async(large, 'file', progress=raising).result()",
}


@pytest.mark.parametrize("call", INTERRUPTED.values(), ids=INTERRUPTED.keys())
def test_ctrl_c_in_a_progress_callback_ends_the_wait(child, call):
    out = child(COMMON + CTRL_C + f"""
def raising(done, total):
    global pressed
    if pressed:
        seen.wait(100)
    pressed = True
    if not seen.is_set():
        raise KeyboardInterrupt
try:
    {call}
    print("ended by itself")
except KeyboardInterrupt:
    print("interrupted")
""")
    assert out == "interrupted\n"


# With one file the call is interrupted while it waits for its turn, with thousands between two files.
@pytest.mark.parametrize("count", [1, 10_000])
def test_ctrl_c_ends_save_many_and_changes_nothing(child, count):
    out = child(COMMON + CTRL_C + f"""
os.mkdir("folder")
handle.save_many({{"0": b"old"}}, "folder")
tensors = {{f"{{i}}": large if {count} == 1 else small for i in range({count})}}
if {count} == 1:
    {STANDING.strip()}
try:
    with once_waiting(press) if {count} == 1 else contextlib.nullcontext():
        handle.save_many(tensors, "folder", durable=False, progress=press)
    print("ended by itself")
except KeyboardInterrupt:
    print("interrupted", os.listdir("folder"), open("folder/0", "rb").read(3))
""")
    assert out == "interrupted ['0'] b'old'\n"


@pytest.mark.parametrize("count", [1, 10_000])
def test_ctrl_c_ends_load_many(child, count):
    out = child(COMMON + CTRL_C + f"""
os.mkdir("folder")
size = large.numel() if {count} == 1 else 5000
buffers = {{f"{{i}}": large[i * size:(i + 1) * size] for i in range({count})}}
for name in buffers:
    with open(f"folder/{{name}}", "wb") as stream:
        stream.truncate(size)
if {count} == 1:
    {STANDING.strip()}
try:
    with once_waiting(press) if {count} == 1 else contextlib.nullcontext():
        handle.load_many(buffers, "folder", progress=press)
    print("ended by itself")
except KeyboardInterrupt:
    assert {count} == 1 or large[0] == 0
    print("interrupted", large[{count} * size - 1].item())
""")
    assert out == "interrupted 1\n"


def test_an_interrupted_save_is_nothing_to_wait_for(child):
    out = child(COMMON + STANDING + """
class Alarm(Exception):
    pass
def ring():
    standing.go()
    raise Alarm
try:
    with once_waiting(ring):
        handle.save_many({"a": large}, ".")
except Alarm:
    standing.future.wait()
    print("alarm", handle.pending(), handle.wait(), os.listdir("."))
assert handle.save_many({"a": small}, ".") == 5000
""")
    assert out == "alarm 0 0 []\n"


# torch replaces the exception that its stream raises.
@pytest.mark.parametrize("call", ["save(tensors, 'saved', handle=handle)", "load('file', handle=handle)"])
@pytest.mark.parametrize("raised", ["SystemExit", "Alarm"])
def test_an_exception_of_a_signal_handler_ends_a_save_and_a_load_of_torch(child, call, raised):
    out = child(COMMON + f"""
import weightfs.torch
class Alarm(Exception):
    pass
def ring():
    standing.go()
    raise {raised}
tensors = [large]
weightfs.torch.save(tensors, "file")
{STANDING}
try:
    with once_waiting(ring):
        weightfs.torch.{call}
    print("ended by itself")
except {raised}:
    print("{raised}", handle.wait(), os.listdir("."))
""")
    assert out == f"{raised} 0 ['file']\n"


# The handler runs while the call holds its files: once its first file waits for the long write.
HOLDING = """
import errno
def outcome(call):
    try:
        call()
        return "done"
    except OSError as error:
        return "would deadlock" if error.errno == errno.EDEADLK else str(error)
buffer = torch.empty(5000, dtype=torch.uint8)
uses = [lambda: handle.write_from(small, "a"), lambda: handle.read_into(buffer, os.path.abspath("b")),
        lambda: handle.save_many({"b": small}, "."), lambda: handle.load_many({"a": buffer}, "."),
        lambda: handle.write_async(small, "a")]
others = [lambda: handle.write_from(small, "c"), lambda: handle.save_many({"d": small}, "."), lambda: handle.wait()]
"""


@pytest.mark.parametrize("call", ["save_many", "load_many"])
def test_a_handler_cannot_use_the_files_that_its_thread_saves_or_loads(child, call):
    out = child(COMMON + HOLDING + f"""
handle.save_many({{"a": small, "b": small}}, ".")
{STANDING}
uses = uses if "{call}" == "save_many" else [uses[0], uses[2], uses[4]]   # reads do not wait for each other
def use():
    standing.go()
    print({{outcome(use) for use in uses}}, {{outcome(use) for use in others}})
with once_waiting(use):
    handle.{call}({{"a": small.clone(), "b": small.clone()}}, ".")
print({{outcome(use) for use in uses}})
""")
    assert out == "{'would deadlock'} {'done'}\n{'done'}\n"


def test_a_handler_cannot_wait_for_another_thread_that_waits_for_its_save(child):
    out = child(COMMON + HOLDING + f"""
{STANDING}
waiting = threading.Thread(target=lambda: handle.save_many({{"a": small, "c": small}}, "."))
def use():
    standing.go()
    waiting.start()
    while outcome(lambda: handle.write_from(small, "c")) != "would deadlock":   # until the thread has named its files
        pass
with once_waiting(use):
    handle.save_many({{"a": small}}, ".")
waiting.join()
print(outcome(lambda: handle.write_from(small, "c")))
""")
    assert out == "done\n"


def test_a_handler_cannot_wait_for_an_operation_that_waits_for_its_save(child):
    out = child(COMMON + HOLDING + f"""
{STANDING}
futures = []
def use():
    standing.go()
    thread = threading.Thread(target=lambda: futures.append(handle.write_async(small, "a")))
    thread.start()
    thread.join()
    print(outcome(futures[0].result), outcome(handle.wait), futures[0].done())
with once_waiting(use):
    handle.save_many({{"a": small}}, ".")
print(futures[0].result(), outcome(handle.wait))
""")
    assert out == "would deadlock would deadlock False\n5000 done\n"


@pytest.mark.parametrize("call", ["save_many", "load_many"])
def test_a_progress_callback_cannot_wait_for_the_files_of_its_call(child, call):
    out = child(COMMON + HOLDING + f"""
handle.save_many({{"a": small, "b": small}}, ".")
found, started = set(), []
def report(done, total):
    found.update(outcome(use) for use in uses[:4])
    started.append(handle.write_async(small, "a"))   # begins when the call is done
handle.{call}({{"a": small.clone(), "b": small.clone()}}, ".", progress=report)
print(found, {{future.result() for future in started}})
""")
    assert out == "{'would deadlock'} {5000}\n"
