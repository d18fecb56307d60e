# SPDX-License-Identifier: Apache-2.0
"""A process next to the tests that ends hung operations, and cleans up after a killed test run.

If a test waits in the kernel for a filesystem that does not respond, nothing in its own process can interrupt it. So
this process knows every mount and its daemon: when a test exceeds its limit, the watchdog sends SIGKILL to the daemons
and detaches the mounts. Then every waiting system call returns an error and the test fails. It does the same when the
test run itself is gone. It receives its commands as lines on standard input."""

import contextlib
import os
import select
import subprocess
import sys
import time
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness.process import kill, processes_with  # noqa: E402
from harness.syscalls import unmount_lazily  # noqa: E402

GRACE_S = 60  # time between killing the daemons and killing the test run itself


class Watchdog:
    """The test run's side of the watchdog."""

    def __init__(self):
        self._fired_path = None
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(os.getpid())], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            start_new_session=True)

    def _order(self, *words):
        self._process.stdin.write("\t".join(map(str, words)) + "\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().strip()

    def arm(self, seconds, name):
        self._order("arm", seconds, name)

    def disarm(self):
        """Returns whether the watchdog fired since it was armed."""
        return self._order("disarm") == "fired"

    def watch(self, directory, program="", argument=""):
        """Registers a mount, with the program name and one argument that identify its daemon."""
        self._order("watch", directory, program, argument)

    def forget(self, directory):
        self._order("forget", directory)

    def rescue(self):
        """Kills every daemon now."""
        self._order("rescue")

    def close(self):
        self._process.stdin.close()
        self._process.wait(timeout=30)


class _Guard:
    def __init__(self, test_run):
        self.test_run, self.mounts = test_run, {}
        self.deadline, self.name, self.fired = None, "", False

    def end_mounts(self):
        for directory, (name, argument) in self.mounts.items():
            for pid in processes_with(name, argument) if name else []:
                kill(pid)
            if unmount_lazily(directory) != 0 and os.geteuid() != 0:
                command = ["fusermount3", "-uz", directory]
                with contextlib.suppress(subprocess.TimeoutExpired):
                    subprocess.run(command, stderr=subprocess.DEVNULL, timeout=10, check=False)

    def fire(self):
        if not self.fired:
            print(f"\nwatchdog: {self.name} hangs; killing the filesystems under test", file=sys.stderr, flush=True)
            self.fired = True
            self.end_mounts()
            self.deadline = time.monotonic() + GRACE_S
        else:
            print(f"\nwatchdog: {self.name} still hangs; killing the test run", file=sys.stderr, flush=True)
            os.kill(self.test_run, 9)
            self.deadline = None

    def obey(self, words):
        if words[0] == "arm":
            self.deadline, self.name, self.fired = time.monotonic() + float(words[1]), words[2], False
        elif words[0] == "disarm":
            self.deadline = None
            return "fired" if self.fired else "quiet"
        elif words[0] == "watch":
            self.mounts[words[1]] = (words[2], words[3])
        elif words[0] == "forget":
            self.mounts.pop(words[1], None)
        elif words[0] == "rescue":
            self.end_mounts()
        return "ok"

    def serve(self):
        pending = b""
        while True:
            wait = None if self.deadline is None else max(0.0, self.deadline - time.monotonic())
            if not select.select([0], [], [], wait)[0]:
                self.fire()
                continue
            piece = os.read(0, 65536)
            if not piece:
                self.end_mounts()
                return
            pending += piece
            *lines, pending = pending.split(b"\n")
            for line in lines:
                print(self.obey(line.decode().split("\t")), flush=True)


if __name__ == "__main__":
    _Guard(int(sys.argv[1])).serve()
