# SPDX-License-Identifier: Apache-2.0
"""Random operations on names, carried out by several users on the filesystem under test and on a local one.

    random_namespace.py TESTED REFERENCE --seed 7 --ops 1500 [--dump FILE] [--replay FILE]

Exits with 0 if every operation gave the same result or errno on both, and both trees are equal at the end. Needs root,
because every operation runs in a chroot."""

import argparse
import json
import os
import random
import signal
import stat
import struct
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness.syscalls import (RENAME_EXCHANGE, RENAME_NOREPLACE, errno_name,  # noqa: E402
                              link_following, rename_flags)
from harness.tree import differences, snapshot  # noqa: E402
from harness.users import NOBODY, OTHER, become  # noqa: E402

NAMES = ["a", "b", "c", "d", "e", "f", "g", "h", "name with space", "n" * 255, "x" * 100]
BAD_NAMES = ["m" * 256, "", ".", "..", "a/", "a/b/c/d/e/f"]
MODES = [0o755, 0o777, 0o700, 0o644, 0o666, 0o600, 0o444, 0o000, 0o1777, 0o2775, 0o4755, 0o6711]
OPEN_FLAGS = [os.O_RDONLY, os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_TRUNC, os.O_RDONLY | os.O_DIRECTORY,
              os.O_RDONLY | os.O_NOFOLLOW, os.O_RDWR | os.O_CREAT, os.O_WRONLY | os.O_CREAT | os.O_EXCL,
              os.O_RDWR | os.O_CREAT | os.O_TRUNC, os.O_WRONLY | os.O_APPEND | os.O_CREAT,
              os.O_RDONLY | os.O_CREAT | os.O_DIRECTORY, os.O_PATH]
ATTRIBUTES = ["user.one", "user.two", "user." + "k" * 200, "trusted.three", "security.four", "unknown.five", "user."]


class Operations:
    """Each method carries out one operation and returns the result on which both filesystems must agree. Used only in a
    process whose root directory is the one under test, because the symbolic links made here point anywhere."""

    @staticmethod
    def at(path):
        return "/" + path

    def mkdir(self, path, mode):
        os.mkdir(self.at(path), mode)

    def rmdir(self, path):
        os.rmdir(self.at(path))

    def create(self, path, mode, size):
        descriptor = os.open(self.at(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        try:
            return os.write(descriptor, bytes([size % 251]) * size)
        finally:
            os.close(descriptor)

    def open(self, path, flags, mode, size):
        descriptor = os.open(self.at(path), flags | os.O_NONBLOCK, mode)
        try:
            status = os.fstat(descriptor)
            if flags & os.O_ACCMODE and not flags & os.O_PATH and stat.S_ISREG(status.st_mode):
                os.write(descriptor, b"w" * size)
            return oct(os.fstat(descriptor).st_mode)
        finally:
            os.close(descriptor)

    def unlink(self, path):
        os.unlink(self.at(path))

    def rename(self, source, target):
        os.rename(self.at(source), self.at(target))

    def rename_flags(self, source, target, flags):
        rename_flags(self.at(source), self.at(target), flags)

    def link(self, source, target, follow):
        if follow:
            link_following(self.at(source), self.at(target))
        else:
            os.link(self.at(source), self.at(target), follow_symlinks=False)

    def symlink(self, target, path):
        os.symlink(target, self.at(path))

    def readlink(self, path):
        return os.readlink(self.at(path))

    def chmod(self, path, mode):
        os.chmod(self.at(path), mode)

    def chown(self, path, uid, gid, follow):
        os.chown(self.at(path), uid, gid, follow_symlinks=follow)

    def mkfifo(self, path, mode):
        os.mkfifo(self.at(path), mode)

    def mknod(self, path, kind, mode):
        os.mknod(self.at(path), kind | mode, os.makedev(1, 3) if kind in (stat.S_IFCHR, stat.S_IFBLK) else 0)

    def truncate(self, path, size):
        os.truncate(self.at(path), size)

    def utime(self, path, atime, mtime, follow):
        os.utime(self.at(path), ns=(atime, mtime), follow_symlinks=follow)
        status = os.stat(self.at(path), follow_symlinks=follow)
        # The path may lead through the link itself, which may count as an access to it.
        return [0 if stat.S_ISLNK(status.st_mode) else status.st_atime_ns, status.st_mtime_ns]

    def touch(self, path):
        os.utime(self.at(path))

    def access(self, path, mode):
        return os.access(self.at(path), mode)

    def stat(self, path, follow):
        status = os.stat(self.at(path), follow_symlinks=follow)
        size = status.st_size if not stat.S_ISDIR(status.st_mode) else 0
        return [oct(status.st_mode), status.st_nlink, status.st_uid, status.st_gid, size]

    def list(self, path):
        return sorted((entry.name, entry.is_dir(follow_symlinks=False), entry.is_symlink())
                      for entry in os.scandir(self.at(path)))

    def set_attribute(self, path, name, size, flags, follow):
        os.setxattr(self.at(path), name, bytes([size % 256]) * size, flags, follow_symlinks=follow)

    def get_attribute(self, path, name):
        return os.getxattr(self.at(path), name).hex()

    def remove_attribute(self, path, name):
        os.removexattr(self.at(path), name)

    def list_attributes(self, path):
        return sorted(os.listxattr(self.at(path)))

    def set_acl(self, path, default, uid, permissions, mask):
        name = f"system.posix_acl_{'default' if default else 'access'}"
        os.setxattr(self.at(path), name, acl(uid, permissions, mask))

    def get_acl(self, path, default):
        return os.getxattr(self.at(path), f"system.posix_acl_{'default' if default else 'access'}").hex()


def acl(uid, permissions, mask):
    """The kernel's binary form of: owner rwx, one named user, group r-x, mask, others r--."""
    entries = [(1, 7, 0xFFFFFFFF), (2, permissions, uid), (4, 5, 0xFFFFFFFF), (16, mask, 0xFFFFFFFF),
               (32, 4, 0xFFFFFFFF)]
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


class Worker:
    """A process with one user's privileges whose root directory is one of the filesystems."""

    def __init__(self, uid, root):
        (order_read, order_write), (answer_read, answer_write) = os.pipe(), os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.chroot(root)
                os.chdir("/")
                become(uid)
                os.umask(0o022)
                self.serve(os.fdopen(order_read), os.fdopen(answer_write, "w"))
            finally:
                os._exit(0)
        os.close(order_read)
        os.close(answer_write)
        self.order, self.answer = os.fdopen(order_write, "w"), os.fdopen(answer_read)

    @staticmethod
    def serve(orders, answers):
        operations = Operations()
        for line in orders:
            name, *arguments = json.loads(line)
            try:
                result = ["value", getattr(operations, name)(*arguments)]
            except OSError as error:
                result = ["errno", errno_name(error.errno)]
            except ValueError as error:
                result = ["refused", str(error)]
            answers.write(json.dumps(result) + "\n")
            answers.flush()

    def begin(self, operation):
        self.order.write(json.dumps(operation) + "\n")
        self.order.flush()

    def end(self):
        return json.loads(self.answer.readline())

    def close(self):
        # Killed, because later workers hold a copy of the pipe, so it would not see the end of its input.
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


class Chooser:
    """Chooses operations from a seed and from the results of the earlier ones."""

    KNOWN = 60    # paths

    def __init__(self, seed):
        self.random, self.known = random.Random(seed), []

    def note(self, name, arguments):
        """Records a successful operation: a path that it created is useful for later ones."""
        place = {"mkdir": 0, "create": 0, "open": 0, "mkfifo": 0, "mknod": 0, "rename": 1, "rename_flags": 1, "link": 1,
                 "symlink": 1}.get(name)
        if place is not None and arguments[place].count("/") < 5:
            self.known.append(arguments[place])
            if len(self.known) > self.KNOWN:
                self.known.pop(self.random.randrange(self.KNOWN))

    def name(self):
        return self.random.choice(NAMES[:8] if self.random.random() < 0.9 else NAMES)

    def path(self):
        kind = self.random.random()
        if kind < 0.7 and self.known:
            known = self.random.choice(self.known)
            return known if kind < 0.4 else f"{known}/{self.name()}"
        parts = [self.name() for _ in range(self.random.choice([1, 1, 1, 2, 2, 3]))]
        if self.random.random() < 0.03:
            parts[-1] = self.random.choice(BAD_NAMES)
        return "/".join(parts)

    def mode(self):
        return self.random.choice(MODES) if self.random.random() < 0.4 else self.random.choice([0o777, 0o755])

    def flag(self):
        return self.random.random() < 0.5

    def who(self):
        return self.random.choice([-1, 0, NOBODY, OTHER])

    def attribute(self):
        return self.random.choice(ATTRIBUTES[:3] if self.random.random() < 0.7 else ATTRIBUTES)

    def next(self):
        r, path = self.random, self.path
        makers = {
            "mkdir": (14, lambda: [path(), self.mode() if r.random() < 0.5 else 0o777]),
            "rmdir": (9, lambda: [path()]), "create": (12, lambda: [path(), self.mode(), r.choice([0, 10, 5000])]),
            "open": (8, lambda: [path(), r.choice(OPEN_FLAGS), self.mode(), r.choice([0, 7, 4097])]),
            "unlink": (12, lambda: [path()]), "rename": (9, lambda: [path(), path()]),
            "rename_flags": (5, lambda: [path(), path(), r.choice([RENAME_NOREPLACE, RENAME_EXCHANGE, 3])]),
            "link": (10, lambda: [path(), path(), self.flag()]),
            "symlink": (7, lambda: [r.choice([path(), path(), "../" + path(), "/", "loop", "t" * 4095]), path()]),
            "readlink": (2, lambda: [path()]), "chmod": (6, lambda: [path(), self.mode()]),
            "chown": (5, lambda: [path(), self.who(), self.who(), self.flag()]),
            "mkfifo": (2, lambda: [path(), self.mode()]),
            "mknod": (3, lambda: [path(), r.choice([stat.S_IFREG, stat.S_IFIFO, stat.S_IFSOCK, stat.S_IFCHR,
                                                    stat.S_IFBLK]), self.mode()]),
            "truncate": (4, lambda: [path(), r.choice([0, 1, 4096, 70_000])]),
            "utime": (3, lambda: [path(), r.randrange(1 << 60), r.randrange(1 << 60), self.flag()]),
            "touch": (2, lambda: [path()]), "access": (3, lambda: [path(), r.randrange(8)]),
            "stat": (4, lambda: [path(), self.flag()]), "list": (3, lambda: [path()]),
            "set_attribute": (5, lambda: [path(), self.attribute(), r.choice([0, 1, 30, 300]), r.choice([0, 0, 1, 2]),
                                          self.flag()]),
            "get_attribute": (2, lambda: [path(), self.attribute()]),
            "remove_attribute": (2, lambda: [path(), self.attribute()]), "list_attributes": (2, lambda: [path()]),
            "set_acl": (2, lambda: [path(), self.flag(), r.choice([NOBODY, OTHER]), r.randrange(8), r.randrange(8)]),
            "get_acl": (1, lambda: [path(), self.flag()]),
        }
        names = list(makers)
        name = r.choices(names, [makers[each][0] for each in names])[0]
        return [r.choice([0, 0, 0, 0, 1, 2]), name, *makers[name][1]()]


def choose(seed, count):
    """Yields operations; the caller sends back whether each one succeeded."""
    chooser = Chooser(seed)
    for _ in range(count):
        operation = chooser.next()
        if (yield operation):
            chooser.note(operation[1], operation[2:])


def replay(path):
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def perform(workers, roots, operations, dump):
    succeeded, index = None, 0
    while True:
        try:
            user, *operation = operations.send(succeeded)
        except StopIteration:
            return 0
        if dump:
            dump.write(json.dumps([user, *operation]) + "\n")
            dump.flush()
        for worker in workers[user]:
            worker.begin(operation)
        tested, reference = (worker.end() for worker in workers[user])
        if tested != reference:
            print(f"operation {index} {operation} as user {user}: {tested}, the reference gave {reference}",
                  file=sys.stderr)
            return 1
        succeeded, index = reference[0] == "value", index + 1
        if index % 500 == 0 and not trees_equal(roots, f"after {index} operations"):
            return 1


def trees_equal(roots, when):
    lines = differences(snapshot(roots[1]), snapshot(roots[0]))
    if lines:
        print(f"{when} the trees differ:", *lines, sep="\n", file=sys.stderr)
    return not lines


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("tested")
    parser.add_argument("reference")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ops", type=int, default=1500)
    parser.add_argument("--dump")
    parser.add_argument("--replay")
    arguments = parser.parse_args()
    roots = [arguments.tested, arguments.reference]
    for root in roots:
        os.chmod(root, 0o777)
    workers = [[Worker(uid, root) for root in roots] for uid in (0, NOBODY, OTHER)]
    operations = replay(arguments.replay) if arguments.replay else choose(arguments.seed, arguments.ops)
    dump = open(arguments.dump, "w") if arguments.dump else None
    try:
        return perform(workers, roots, operations, dump) or (0 if trees_equal(roots, "at the end") else 1)
    finally:
        for worker in sum(workers, []):
            worker.close()


if __name__ == "__main__":
    sys.exit(main())
