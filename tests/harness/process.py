# SPDX-License-Identifier: Apache-2.0
"""Runs programs for the tests. Each has a time limit, and its output is shown if it fails."""

import contextlib
import os
import select
import signal
import subprocess
import threading
from pathlib import Path

DEFAULT_LIMIT_S = 60


class Failure(AssertionError):
    """A program ended differently from what the test expected."""


class Finished:
    def __init__(self, command, code, out, err):
        self.command, self.code, self.out, self.err = command, code, out, err

    def __repr__(self):
        return f"{' '.join(map(str, self.command))}: exit {self.code}\n{self.out[-4000:]}\n{self.err[-4000:]}"


def open_files(pid):
    """What the descriptors of a process refer to, once for each; without those that it closes meanwhile."""
    targets = []
    for number in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            targets.append(os.readlink(f"/proc/{pid}/fd/{number}"))
    return targets


def run(command, *, limit=DEFAULT_LIMIT_S, codes=(0,), text=True, input=None, on_hang=None, **options):
    """Runs `command` and returns its output. Raises Failure if its exit code is not in `codes` (None: any), or if it
    takes longer than `limit` seconds. `on_hang` is called before the program is killed, because a program that waits
    for a dead filesystem ends only after the filesystem's process has ended."""
    process = subprocess.Popen(
        [str(word) for word in command], text=text, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        stdin=subprocess.PIPE if input is not None else subprocess.DEVNULL, **options)
    try:
        out, err = process.communicate(input, timeout=limit)
    except subprocess.TimeoutExpired:
        out, err = end_hung(process, on_hang)
        raise Failure(f"no end within {limit} s: {Finished(command, None, str(out), str(err))}") from None
    finished = Finished(command, process.returncode, out, err)
    if codes is not None and process.returncode not in codes:
        raise Failure(repr(finished))
    return finished


def end_hung(process, on_hang=None):
    if on_hang is not None:
        on_hang()
    process.kill()
    try:
        return process.communicate(timeout=10)
    except subprocess.TimeoutExpired:
        return "", f"process {process.pid} did not end on SIGKILL either"


def finish(process, limit=DEFAULT_LIMIT_S, codes=(0,)):
    """Waits for a Popen, by the same rules as run."""
    try:
        out, err = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        out, err = end_hung(process)
        raise Failure(f"no end within {limit} s: {Finished(process.args, None, out, err)}") from None
    finished = Finished(process.args, process.returncode, out or "", err or "")
    if codes is not None and process.returncode not in codes:
        raise Failure(repr(finished))
    return finished


def read_line(process, limit=DEFAULT_LIMIT_S):
    """The next line of a Popen's output. If there is none within `limit` seconds, kills the process and raises
    Failure."""
    timer = threading.Timer(limit, process.kill)
    timer.start()
    try:
        line = process.stdout.readline()
    finally:
        timer.cancel()
    if not line:
        raise Failure(f"no line within {limit} s: {finish(process, codes=None)}")
    return line


class Processes:
    """The processes of a test. None of them is left at the end of the context."""

    def __init__(self):
        self._started = []

    def start(self, command, **options):
        """Starts a Popen with text streams and without input, unless the options say otherwise."""
        settings = {"text": True, "stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self._started.append(subprocess.Popen([str(word) for word in command], **{**settings, **options}))
        return self._started[-1]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self._started:
            process.kill()
        for process in self._started:
            process.wait(timeout=DEFAULT_LIMIT_S)
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    stream.close()


def processes_with(program, argument):
    """IDs of the processes with that program name and `argument` on their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if os.path.basename(words[0]) == program.encode() and argument.encode() in words:
            found.append(int(entry.name))
    return found


def kill(pid, signal_number=signal.SIGKILL):
    assert pid > 0, "there is no process to kill"  # 0 would mean our whole process group
    try:
        os.kill(pid, signal_number)
    except ProcessLookupError:
        pass


def wait_gone(pid, limit=DEFAULT_LIMIT_S):
    """Waits until a process, which need not be a child, has ended; 0 means no process. Returns whether it ended."""
    if pid == 0:
        return True
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], limit)[0])
    finally:
        os.close(descriptor)
