# SPDX-License-Identifier: Apache-2.0
"""Operations that are guaranteed to be under way."""

import collections
import contextlib
import os
import signal
import threading
import time

# For child programs that import this module.
HERE_ON_PATH = f"import sys\nsys.path.insert(0, {os.path.dirname(os.path.abspath(__file__))!r})\n"


class StandingWrite:
    """A write that has begun and ends when `go` is called."""

    def __init__(self, handle, tensor, path, **options):
        self._stands, self._goes = threading.Event(), threading.Event()
        self.future = handle.write_async(tensor, path, progress=self._stand, **options)
        self._stands.wait()

    def _stand(self, *_):
        self._stands.set()
        self._goes.wait(100)

    def go(self):
        self._goes.set()


class LongWrite:
    """A write of a large tensor. Later transfers of its handle, which has a queue depth of 1, wait for it, until `go`
    cancels it."""

    def __init__(self, handle, tensor, path):
        self.future = handle.write_async(tensor, path)

    def go(self):
        self.future.cancel()


def hold_until_closed(handle, path, *links):
    """Starts a write that ends once the handle is being closed. Writes of `path`, and of the links to it that this
    makes, wait for it, and are then canceled."""
    stands, behind = threading.Event(), []

    def stand(*_):
        stands.set()
        while not behind or not behind[0].cancelled():
            time.sleep(0.001)
    with open(path, "wb"):
        pass
    for link in links:
        os.link(path, link)
    held = handle.write_async(bytearray(1), path, 0, progress=stand)
    stands.wait()
    held.cancel()   # not by the close, which would log it
    behind.append(handle.write_async(bytearray(1), path, 0))   # only the close cancels it


@contextlib.contextmanager
def once_waiting(act, functions=None):
    """Calls `act` in a signal handler on the main thread, once a call in the block waits; if `functions` are given, in
    one of these Python functions. A waiting call checks for signals repeatedly, whereas signals that arrive earlier
    find Python at one place only once."""
    places, looked, over = collections.Counter(), threading.Event(), threading.Event()

    def look(_, frame):
        places[frame, frame.f_lasti] += 1
        waits = functions is None or frame.f_code.co_name in functions
        try:
            if waits and places[frame, frame.f_lasti] == 4 and not over.is_set():
                over.set()
                act()
        finally:
            looked.set()

    def press():
        while not over.is_set():
            looked.clear()
            signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
            looked.wait(60)

    before = signal.signal(signal.SIGUSR1, look)
    thread = threading.Thread(target=press)
    thread.start()
    try:
        yield
        assert over.is_set(), "nothing within has waited"
    finally:
        over.set()
        thread.join()
        signal.signal(signal.SIGUSR1, before)
