# SPDX-License-Identifier: Apache-2.0
"""What the programs have in common: arguments, progress, signals, processes and errors."""

import argparse
import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time

_PR_SET_PDEATHSIG = 1


class Failure(Exception):
    """An error that ends the program. Its text is one complete line."""


Stop = (KeyboardInterrupt, SystemExit)   # raised by Ctrl-C, and by leave() on SIGTERM


class Parser(argparse.ArgumentParser):
    """Reports an error in one line."""

    def __init__(self, formatter_class=argparse.RawDescriptionHelpFormatter, **arguments):
        super().__init__(allow_abbrev=False, formatter_class=formatter_class, **arguments)

    def error(self, message):
        self.exit(2, f"{self.prog.replace(' ', ': ')}: {message}; see '{self.prog} --help'\n")


def size(text):
    """The bytes of "400M", "1G", "64K" or a number: a type of arguments."""
    unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}.get(text[-1:].upper(), 1)
    digits = text[:-1] if unit > 1 else text
    if not digits.isascii() or not digits.isdigit() or not 0 < int(digits) * unit < 1 << 63:
        raise argparse.ArgumentTypeError(f"'{text}' is not a size: a number, with K, M, G or T")
    return int(digits) * unit


def number_from(least):
    """A type of arguments: whole numbers from `least` on."""
    def number(text):
        if not text.isascii() or not text.isdigit() or int(text) < least:
            raise argparse.ArgumentTypeError(f"'{text}' is not a whole number of at least {least}")
        return int(text)
    return number


def directory(text):
    """A type of arguments."""
    if not os.path.isdir(text):
        raise argparse.ArgumentTypeError(f"{text}: no such directory")
    return text


class Bar:
    """A progress bar with the remaining time on standard error, if that is a terminal."""

    _WIDTH = 30

    def __init__(self, name):
        self._name, self._shown, self._begin = name, sys.stderr.isatty(), time.monotonic()

    def show(self, what, part=0):
        """what: the step that begins; part: what is done of all, from 0 to 1."""
        if self._shown:
            spent, full = time.monotonic() - self._begin, int(self._WIDTH * part)
            left = f", {spent / part - spent:.0f} s left" if part > 0 and spent > 3 else ""
            print(f"\r\033[K{self._name} [{'#' * full}{'.' * (self._WIDTH - full)}] {part:.0%}: {what[:60]}{left}",
                  end="", file=sys.stderr, flush=True)

    def end(self):
        if self._shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


# Signals

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


def guarded(work):
    """Returns the status of work(), which runs in a child process. SystemExit is raised there if this process receives
    a signal or is killed. Signals of the terminal do not reach the child or its processes."""
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGTERM, leave)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        os.setsid()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() == parent:   # it may have ended before prctl
            sys.exit(work())
        os._exit(1)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: os.kill(child, signal.SIGTERM))
    status = os.waitpid(child, 0)[1]
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 1


@contextlib.contextmanager
def uninterrupted():
    """Blocks SIGTERM and SIGINT while something that needs cleanup is created or cleaned up."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# Processes

def command(*words, errors=subprocess.PIPE, env=None):
    """Runs a program to completion and returns its output. It receives no signals from the terminal."""
    words, process = list(map(str, words)), None

    def enter():
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGINT})

    try:
        with uninterrupted():
            process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors,
                                       text=True, errors="replace", start_new_session=True, preexec_fn=enter, env=env)
        out, err = process.communicate()
    except OSError as error:
        raise Failure(f"{words[0]}: {error.strerror}") from error
    except BaseException:
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)   # and wait, because weightfs mount cleans up
            process.communicate()
        raise
    if process.returncode:
        if errors != subprocess.PIPE:
            errors.seek(0)
            err = errors.read()
        line = ((err or out).strip() or "it printed nothing").splitlines()[-1]
        raise Failure(f"'{' '.join(words)}' failed: {line}")
    return out


class Client:
    """A process that answers each line of JSON with one line. It has already imported or prepared what it needs."""

    def __init__(self, *words):
        self.name = words[0]
        try:
            self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                            start_new_session=True)
        except OSError as error:
            raise Failure(f"{self.name}: {error.strerror}") from error

    def ask(self, do, **job):
        try:
            self.process.stdin.write(json.dumps({"do": do, **job}) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise Failure(f"{self.name} ended; what it printed above says why")
        answer = json.loads(line)
        if "error" in answer:
            raise Failure(answer["error"])
        return answer

    def end(self):
        self.process.kill()
        self.process.wait()


# Files of results

def check_output(path):
    """Raises Failure if the file of a result cannot be written at the end. "-" is standard output. An old file stays
    until then."""
    if path == "-" or (os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)):
        return   # standard output, a pipe or a device
    made = not os.path.exists(path)
    try:
        open(path, "a", encoding="utf-8").close()
        if made:
            os.unlink(os.path.realpath(path))
    except OSError as error:
        raise Failure(f"{path}: cannot be written: {error.strerror}") from error


def write(path, text):
    try:
        with open(path if path != "-" else os.dup(1), "w", encoding="utf-8", errors="replace") as stream:
            stream.write(text)
    except OSError as error:
        raise Failure(f"{path if path != '-' else 'standard output'}: cannot be written: {error.strerror}") from error
