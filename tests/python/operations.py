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
    """A write that has begun and continues when `go` is called. All other work of the handle's thread waits for it."""

    def __init__(self, handle, tensor, path, **options):
        self._stands, self._goes = threading.Event(), threading.Event()
        self.future = handle.write_async(tensor, path, progress=self._stand, **options)
        self._stands.wait()

    def _stand(self, *_):
        self._stands.set()
        self._goes.wait(100)

    def go(self):
        self._goes.set()


def until_closed(handle):
    """A progress callback that returns once the handle is being closed. The write that reports to it is then canceled,
    with all other work of the handle's thread."""
    native = handle._opened

    def stand(*_):
        while not native.closed():
            time.sleep(0.001)
    return stand


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
