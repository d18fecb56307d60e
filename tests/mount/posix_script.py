# SPDX-License-Identifier: Apache-2.0
"""Small scripts of file operations with their expected results, as tables for the tests of POSIX behavior.

A script has lines of the form `[@WHO] OPERATION ARGUMENTS... [-> EXPECTED]`. WHO is uid[:gid[,group...]]; the default
is root. EXPECTED is the name of an errno or the operation's result ("nothing" for an empty text, "0" for no value);
without it the operation must succeed. Paths are relative to the test's directory; {n255} stands for a name of 255
bytes, {p4095/x} for a path of 4,095 bytes that ends in x. `mark PATH...` records times and waits until the clock has
advanced; `newer PATH FIELDS...` and `same PATH FIELDS...` compare with them."""

import os
import re
import signal
import socket
import stat
import time

from harness.filesystems import wait_until
from harness.syscalls import (RENAME_EXCHANGE, RENAME_NOREPLACE, RENAME_WHITEOUT, errno_name, link_following,
                              rename_flags)
from harness.users import become
from posix_operations import DescriptorOperations

KINDS = {"file": stat.S_IFREG, "fifo": stat.S_IFIFO, "socket": stat.S_IFSOCK, "char": stat.S_IFCHR,
         "block": stat.S_IFBLK}
RENAME_FLAGS = {"noreplace": RENAME_NOREPLACE, "exchange": RENAME_EXCHANGE, "both": RENAME_NOREPLACE | RENAME_EXCHANGE,
                "whiteout": RENAME_WHITEOUT, "white-exchange": RENAME_WHITEOUT | RENAME_EXCHANGE, "unknown": 64}
CLOCK_REALTIME_COARSE = 5  # linux/time.h: the clock that file times use
TIMES = {"atime": "st_atime_ns", "mtime": "st_mtime_ns", "ctime": "st_ctime_ns"}


def octal(text):
    return int(text, 8)


def flags_of(text):
    """"O_RDWR,O_CREAT" -> a number."""
    result = 0
    for name in text.split(","):
        result |= getattr(os, name)
    return result


class Operations(DescriptorOperations):
    """The operations of a script. Results are compared as text."""

    def create(self, path, mode="0644"):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, octal(mode)))

    def open(self, path, flags, mode="0644"):
        os.close(os.open(path, flags_of(flags) | os.O_NONBLOCK, octal(mode)))

    def write(self, path, text, flags="O_WRONLY"):
        descriptor = os.open(path, flags_of(flags), 0o644)
        try:
            return os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)

    def read(self, path):
        with open(path, "rb", buffering=0) as stream:
            return stream.read().decode(errors="replace")

    def mkdir(self, path, mode="0755"):
        os.mkdir(path, octal(mode))

    def rmdir(self, path):
        os.rmdir(path)

    def unlink(self, path):
        os.unlink(path)

    def rename(self, source, target):
        os.rename(source, target)

    def renameat2(self, source, target, flags):
        rename_flags(source, target, RENAME_FLAGS[flags])

    def link(self, source, target):
        os.link(source, target, follow_symlinks=False)

    def link_follow(self, source, target):
        link_following(source, target)

    def symlink(self, target, path):
        os.symlink(target, path)

    def readlink(self, path):
        return os.readlink(path)

    def chmod(self, path, mode):
        os.chmod(path, octal(mode))

    def fchmod(self, path, mode):
        with open(path, "rb") as stream:
            os.fchmod(stream.fileno(), octal(mode))

    def chown(self, path, uid, gid):
        os.chown(path, int(uid), int(gid))

    def lchown(self, path, uid, gid):
        os.lchown(path, int(uid), int(gid))

    def truncate(self, path, size):
        os.truncate(path, int(size))

    def ftruncate(self, path, size, flags="O_RDWR"):
        descriptor = os.open(path, flags_of(flags))
        try:
            os.ftruncate(descriptor, int(size))
        finally:
            os.close(descriptor)

    def posix_fallocate(self, path, offset, length, flags="O_RDWR"):
        descriptor = os.open(path, flags_of(flags))
        try:
            os.posix_fallocate(descriptor, int(offset), int(length))
        finally:
            os.close(descriptor)

    def mkfifo(self, path, mode="0644"):
        os.mkfifo(path, octal(mode))

    def mknod(self, path, kind, mode="0644", major="0", minor="0"):
        os.mknod(path, KINDS[kind] | octal(mode), os.makedev(int(major), int(minor)))

    def bind(self, path):
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path)

    def utime(self, path, atime, mtime):
        os.utime(path, ns=(int(atime), int(mtime)))

    def lutime(self, path, atime, mtime):
        os.utime(path, ns=(int(atime), int(mtime)), follow_symlinks=False)

    def touch(self, path):
        os.utime(path)

    def stat(self, path, field):
        return field_of(os.stat(path), field)

    def lstat(self, path, field):
        return field_of(os.lstat(path), field)

    def list(self, path):
        return " ".join(sorted(os.listdir(path)))

    def access(self, path, mode):
        os.close(os.open(path, os.O_PATH))
        return os.access(path, {"r": os.R_OK, "w": os.W_OK, "x": os.X_OK}[mode])

    def umask(self, mask):
        os.umask(octal(mask))

    def exec(self, path):
        return os.spawnv(os.P_WAIT, path, [path])

    def setxattr(self, path, name, value):
        os.setxattr(path, name, value.encode())

    def getxattr(self, path, name):
        return os.getxattr(path, name).decode()


def field_of(status, field):
    if field == "mode":
        return f"{stat.S_IMODE(status.st_mode):04o}"
    if field == "type":
        return next((name for name, kind in {**KINDS, "directory": stat.S_IFDIR, "symlink": stat.S_IFLNK}.items()
                     if stat.S_IFMT(status.st_mode) == kind), "?")
    if field == "device":
        return f"{os.major(status.st_rdev)},{os.minor(status.st_rdev)}"
    return getattr(status, TIMES.get(field, f"st_{field}"))


class Actor:
    """A process with one user's privileges, in the test's directory."""

    def __init__(self, who, directory):
        (order_read, self.order), (self.answer, answer_write) = os.pipe(), os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.chdir(directory)
                os.umask(0)
                if who:
                    uid, _, rest = who.partition(":")
                    groups = [int(group) for group in rest.split(",")] if rest else [int(uid)]
                    become(int(uid), groups[0], groups[1:])
                serve(os.fdopen(order_read), os.fdopen(answer_write, "w"))
            finally:
                os._exit(0)
        os.close(order_read)
        os.close(answer_write)
        self.order, self.answer = os.fdopen(self.order, "w"), os.fdopen(self.answer)

    def do(self, words):
        self.order.write("\t".join(words) + "\n")
        self.order.flush()
        return self.answer.readline().rstrip("\n")

    def close(self):
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self.order.close()
        self.answer.close()


def serve(orders, answers):
    operations = Operations()
    for line in orders:
        name, *arguments = line.rstrip("\n").split("\t")
        try:
            result = getattr(operations, name)(*map(operations.path, arguments))
            text = "0" if result is None else str(result)
        except OSError as error:
            text = errno_name(error.errno)
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
        answers.write(text.replace("\n", "\\n") + "\n")
        answers.flush()


def expand(text):
    """Expands the long names and paths."""
    text = re.sub(r"\{n(\d+)\}", lambda found: "n" * int(found[1]), text)
    return re.sub(r"\{p(\d+)/(\w+)\}", lambda found: path_of(int(found[1]), found[2]), text)


def path_of(length, name):
    rest = length - len(name)
    return ("./" if rest % 2 == 0 else ".//") + "./" * ((rest - (2 if rest % 2 == 0 else 3)) // 2) + name


class Script:
    def __init__(self, directory):
        self.directory, self.actors, self.marks = str(directory), {}, {}

    def run(self, text):
        try:
            for number, line in enumerate(text.strip().splitlines(), 1):
                line = line.strip()
                if line and not line.startswith("#"):
                    self.line(expand(line), f"line {number}: {line}")
        finally:
            for actor in self.actors.values():
                actor.close()

    def line(self, line, where):
        words, _, expected = line.partition(" -> ")
        words, who = words.split(), ""
        if words[0].startswith("@"):
            who = words.pop(0)[1:]
        if words[0] in ("mark", "newer", "same"):
            getattr(self, words[0])(*words[1:], where=where)
            return
        if who not in self.actors:
            self.actors[who] = Actor(who, self.directory)
        # \s stands for a space in an argument, {empty} for an empty one.
        got = self.actors[who].do([word.replace("\\s", " ").replace("{empty}", "") for word in words])
        expected = expected.strip()
        got = got or "nothing"
        if expected:
            assert got in expected.split("|"), f"{where}: got {got}"
        else:
            assert not re.fullmatch(r"E[A-Z0-9]+|\w+Error: .*", got), f"{where}: got {got}"

    def times(self, path):
        status = os.lstat(os.path.join(self.directory, path))
        return {name: getattr(status, field) for name, field in TIMES.items()}

    def mark(self, *paths, where):
        for path in paths:
            self.marks[path] = self.times(path)
        latest = max(self.marks[path]["ctime"] for path in paths)
        # The clock of file times ticks in milliseconds; a later change must get a later time.
        assert wait_until(lambda: time.clock_gettime_ns(CLOCK_REALTIME_COARSE) > latest)

    def newer(self, path, *fields, where):
        now = self.times(path)
        for field in fields:
            assert now[field] > self.marks[path][field], f"{where}: {field} is still {now[field]}"

    def same(self, path, *fields, where):
        now = self.times(path)
        for field in fields:
            assert now[field] == self.marks[path][field], f"{where}: {field} went from {self.marks[path]} to {now}"


def run_script(directory, text):
    Script(directory).run(text)


def needs_root(text):
    return "@" in text or re.search(r"^\s*(chown|lchown|mknod \S+ (char|block))", text, re.MULTILINE) is not None
