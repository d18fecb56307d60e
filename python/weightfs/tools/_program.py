# SPDX-License-Identifier: Apache-2.0
"""How the programs of the package speak and end."""

import argparse
import multiprocessing
import os
import signal
import sys
import threading
import time

_TRIES, _BETWEEN_TRIES_S = 100, 0.1


class Parser(argparse.ArgumentParser):
    """Says what is wrong first, and then the usage."""

    def error(self, message):
        self.exit(2, f"{self.prog}: {message}\n{self.format_usage()}")


Stop = (KeyboardInterrupt, SystemExit)   # how Ctrl-C, and SIGTERM by leave(), end a program


def run(name, program):
    """The status of program(). Ctrl-C and SIGTERM raise one of Stop in it, and the status is 130 or 143 then."""
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
    """A handler of signals; the next ones do not disturb the `finally` blocks."""
    signal.signal(number, signal.SIG_IGN)
    raise SystemExit(128 + number)


def be_a_worker():
    """A process of its parent, which alone hears Ctrl-C, and whose end it does not survive."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, leave)
    threading.Thread(target=_end_with, args=(multiprocessing.parent_process(),), daemon=True).start()


def _end_with(parent):
    parent.join()
    # Again and again: what comes right before the main thread waits for a lock does not wake it.
    for _ in range(_TRIES):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_BETWEEN_TRIES_S)
    os.kill(os.getpid(), signal.SIGKILL)
