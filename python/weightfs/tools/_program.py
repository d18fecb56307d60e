# SPDX-License-Identifier: Apache-2.0
"""Output and exit handling that the package's programs share."""

import argparse
import multiprocessing
import os
import signal
import sys
import threading
import time

_TRIES, _BETWEEN_TRIES_S = 100, 0.1


class Parser(argparse.ArgumentParser):
    """Prints the error first and then the usage."""

    def error(self, message):
        self.exit(2, f"{self.prog}: {message}\n{self.format_usage()}")


Stop = (KeyboardInterrupt, SystemExit)   # raised by Ctrl-C, and by leave() on SIGTERM


def run(name, program):
    """Returns the status of program(). Ctrl-C and SIGTERM raise one of Stop in it; the status is then 130 or 143."""
    before = signal.signal(signal.SIGTERM, leave)
    try:
        return program()
    except KeyboardInterrupt:
        print(f"{name}: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT
    except SystemExit as end:
        if end.code == 128 + signal.SIGTERM:
            print(f"{name}: terminated", file=sys.stderr)
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


def leave(number, _frame):
    """A signal handler. Further signals are ignored, so that they do not disturb the `finally` blocks."""
    signal.signal(number, signal.SIG_IGN)
    raise SystemExit(128 + number)


def be_a_worker():
    """Makes this process a worker: it ignores Ctrl-C, which its parent handles, and ends when its parent does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, leave)
    threading.Thread(target=_end_with, args=(multiprocessing.parent_process(),), daemon=True).start()


def _end_with(parent):
    parent.join()
    # Repeated, because a signal that arrives right before the main thread waits for a lock does not wake it.
    for _ in range(_TRIES):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_BETWEEN_TRIES_S)
    os.kill(os.getpid(), signal.SIGKILL)


class Bar:
    """A progress bar on standard error, if that is a terminal."""

    _WIDTH = 30

    def __init__(self, name, total):
        self._name, self._total, self._done = name, total, 0
        self._shown = sys.stderr.isatty()

    def show(self, what):
        """what: the step that begins."""
        if self._shown:
            full = self._WIDTH * self._done // self._total
            print(f"\r\033[K{self._name} [{'#' * full}{' ' * (self._WIDTH - full)}] {self._done} of {self._total}: "
                  f"{what}", end="", file=sys.stderr, flush=True)

    def advance(self):
        self._done += 1

    def end(self):
        if self._shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
