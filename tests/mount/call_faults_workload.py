# SPDX-License-Identifier: Apache-2.0
"""Each operation of a mount, on a directory whose daemon may fail at any of them. Prints as lines of JSON what begins,
what was acknowledged, what failed and what it sees; call_faults.Expected reads them.

Usage: call_faults_workload.py DIR WEIGHTFS"""

import contextlib
import dataclasses
import errno
import hashlib
import json
import mmap
import os
import stat
import subprocess
import sys

import lease_client
from harness.syscalls import FALLOC_KEEP_SIZE, FALLOC_PUNCH_HOLE, fallocate

PIECE = 1 << 20   # the kernel sends no larger requests, so that each is written whole or not at all


def data_of(seed, size):
    return hashlib.shake_128(seed.encode()).digest(size)


# The files of the store before the workload; all are durable.
BASE = {"base-small": 9000, "base-large": 3 * PIECE, "base-moved": 70_000, "base-gone": 300_000, "base-kept": 400_000}


@dataclasses.dataclass(frozen=True)
class File:
    data: bytes = b""
    mode: int = 0o644
    attribute: str = ""

    def state(self):
        digest = hashlib.sha256(self.data).hexdigest()[:12]
        return f"file {self.mode:o} {self.attribute} {len(self.data)} {digest}"

    def patched(self, at, data):
        before = self.data[:at].ljust(at, b"\0")
        return dataclasses.replace(self, data=before + data + self.data[at + len(data):])


def make_base(root):
    for name, size in BASE.items():
        with open(os.path.join(root, name), "xb") as file:
            file.write(data_of(name, size))


def look(path):
    """The file, or the state of another kind of name; None if it does not exist."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(status.st_mode):
        return "directory"
    if stat.S_ISLNK(status.st_mode):
        return f"link to {os.readlink(path)}"
    with open(path, "rb") as file:
        data = file.read()
    assert len(data) == status.st_size, f"{path}: read {len(data)} bytes of {status.st_size}"
    attribute = os.getxattr(path, "user.kind").decode() if "user.kind" in os.listxattr(path) else ""
    return File(data, stat.S_IMODE(status.st_mode), attribute)


def state_of(found):
    return found.state() if isinstance(found, File) else found


def tree(root):
    """The states of all names below the directory."""
    found = {}
    for directory, directories, files in os.walk(root):
        for name in directories + files:
            path = os.path.join(directory, name)
            found[os.path.relpath(path, root)] = state_of(look(path))
    return found


def report(**words):
    os.write(1, json.dumps(words).encode() + b"\n")


def name_of(error):
    return errno.errorcode.get(error.errno, repr(error))


class Workload:
    """Works in the current directory, so that nothing reaches the directory below the mount when the mount ends."""

    def __init__(self, program):
        self.program = program
        self.files = {name: File(data_of(name, size)) for name, size in BASE.items()}
        self.touched = []

    def run(self):
        for step in STEPS:
            try:
                step(self)
            except OSError as error:
                report(failed=step.__name__, error=name_of(error))
            for name in dict.fromkeys(self.touched):
                try:
                    self.files[name] = look(name)
                    report(saw=name, state=state_of(self.files[name]))
                except OSError as error:
                    self.files.pop(name, None)
                    report(failed=f"looking at {name}", error=name_of(error))
            self.touched.clear()

    @contextlib.contextmanager
    def becomes(self, name, file, **others):
        """A change of a file's content."""
        with self._change({name: file, **others}, named=False):
            yield

    @contextlib.contextmanager
    def named(self, states):
        """A change of names or attributes, which is durable with the next fsync of any file."""
        with self._change(states, named=True):
            yield

    @contextlib.contextmanager
    def _change(self, states, named):
        self.touched += states
        texts = {name: state_of(state) for name, state in states.items()}
        report(begins=texts, named=named)
        yield
        report(done=texts)
        self.files.update(states)

    def file(self, name):
        """What an earlier step has left."""
        if not isinstance(self.files.get(name), File):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        return self.files[name]

    def synced(self, name=None):
        report(synced=name)

    @contextlib.contextmanager
    def opened(self, name, flags, synced=True):
        """Ends with an fsync."""
        descriptor = os.open(name, flags, 0o644)
        try:
            yield descriptor
            if synced:
                os.fsync(descriptor)
                self.synced(name)
        except BaseException:
            with contextlib.suppress(OSError):
                os.close(descriptor)
            raise
        os.close(descriptor)

    @contextlib.contextmanager
    def created(self, name, **options):
        with self.named({name: File()}):
            os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
        with self.opened(name, os.O_RDWR, **options) as descriptor:
            yield descriptor

    def write(self, name, descriptor, at, data):
        for begin in range(0, len(data), PIECE):
            old, piece = self.file(name), data[begin:begin + PIECE]
            with self.becomes(name, old.patched(at + begin, piece)):
                written = os.pwrite(descriptor, piece, at + begin)
                if written < len(piece):
                    break
        else:
            return
        with self.becomes(name, old.patched(at + begin, piece[:written])):   # its second request has failed
            pass
        raise OSError(errno.EIO, os.strerror(errno.EIO))


def create_small(w):
    with w.created("small") as file:
        w.write("small", file, 0, data_of("small", 5000))


def create_large(w):
    with w.created("large") as file:
        w.write("large", file, 0, data_of("large", 3 * PIECE))


def create_without_sync(w):
    with w.created("unsynced", synced=False) as file:
        w.write("unsynced", file, 0, data_of("unsynced", 20_000))


def read_base(w):
    w.touched += ["base-large", "base-small"]


def overwrite_in_place(w):
    with w.opened("base-large", os.O_RDWR) as file:
        w.write("base-large", file, 5000, data_of("patch", 3000))
        w.write("base-large", file, PIECE, data_of("patches", 8192))


def append(w):
    with w.opened("base-small", os.O_WRONLY | os.O_APPEND) as file:
        old = w.file("base-small")
        data = data_of("appended", 6000)
        with w.becomes("base-small", old.patched(len(old.data), data)):
            assert os.write(file, data) == len(data)


def truncate(w):
    with w.opened("base-small", os.O_RDWR) as file:
        with w.becomes("base-small", File(w.file("base-small").data[:5000])):
            os.ftruncate(file, 5000)


def replace_content(w):
    with w.becomes("base-kept", File()):
        file = os.open("base-kept", os.O_WRONLY | os.O_TRUNC)
    os.close(file)
    with w.opened("base-kept", os.O_RDWR) as file:
        w.write("base-kept", file, 0, data_of("kept", 300_000))


def rename_over(w):
    with w.created("temporary", synced=False) as file:
        w.write("temporary", file, 0, data_of("temporary", 40_000))
    with w.named({"temporary": None, "base-moved": w.file("temporary")}):
        os.rename("temporary", "base-moved")


def change_names(w):
    with w.named({"directory": "directory"}):
        os.mkdir("directory")
    with w.named({"directory/hard": w.file("base-moved")}):
        os.link("base-moved", "directory/hard")
    with w.named({"directory/soft": "link to hard"}):
        os.symlink("hard", "directory/soft")
    with w.named({"other": "directory"}):
        os.mkdir("other")
    with w.named({"other": None}):
        os.rmdir("other")
    descriptor = os.open("directory", os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
    w.synced()


def unlink(w):
    with w.named({"base-gone": None}):
        os.unlink("base-gone")


def change_attributes(w):
    file = w.file("small")
    with w.named({"small": dataclasses.replace(file, mode=0o600)}):
        os.chmod("small", 0o600)
    with w.named({"small": dataclasses.replace(w.file("small"), attribute="kept")}):
        os.setxattr("small", "user.kind", b"kept")


def punch(w):
    if len(w.file("large").data) < PIECE:
        return   # its writes have failed
    with w.opened("large", os.O_RDWR) as file:
        with w.becomes("large", w.file("large").patched(8192, bytes(100_000))):
            fallocate(file, FALLOC_PUNCH_HOLE | FALLOC_KEEP_SIZE, 8192, 100_000)


def allocate(w):
    with w.created("allocated") as file:
        with w.becomes("allocated", File(bytes(100_000))):
            fallocate(file, 0, 0, 100_000)


def write_mapped(w):
    if len(w.file("large").data) < PIECE:
        return   # its writes have failed
    with w.opened("large", os.O_RDWR) as file, mmap.mmap(file, PIECE) as mapping:
        data = data_of("mapped", 4096)
        with w.becomes("large", w.file("large").patched(4096, data)):
            mapping[4096:8192] = data
            mapping.flush()


def write_leased(w):
    with w.created("leased", synced=False):
        pass
    data = data_of("leased", 70_000)
    with w.becomes("leased", File(data)):
        lease_client.write_direct("leased", data, durable=True)
    w.synced("leased")


def read_leased(w):
    assert lease_client.read_direct("leased") == w.file("leased").data


def save_many(w):
    files = {f"many-{number}": File(data_of(f"many-{number}", 6000)) for number in range(8)}
    with w.named(files):
        lease_client.write_many(".", {name.encode(): file.data for name, file in files.items()}, durable=True)
    w.synced()


def publish(w):
    with w.named({"version": "directory"}):
        os.mkdir("version")
    with w.created("version/file", synced=False) as file:
        w.write("version/file", file, 0, data_of("published", 9000))
    for words in (["publish"], ["publish", "--undo"]):
        run = subprocess.run([w.program, *words, "version"], capture_output=True, timeout=30)
        if run.returncode != 0:
            raise OSError(errno.EIO, run.stderr.decode())
        w.synced()


def look_around(w):
    os.statvfs(".")
    w.touched += [name for name in os.listdir(".") if os.path.isfile(name)]


STEPS = [create_small, create_large, create_without_sync, read_base, overwrite_in_place, append, truncate,
         replace_content, rename_over, change_names, unlink, change_attributes, punch, allocate, write_mapped,
         write_leased, read_leased, save_many, publish, look_around]


if __name__ == "__main__":
    lease_client.ANSWER_LIMIT_S = 3   # without descriptors, the mount lets nobody in
    try:
        os.chdir(sys.argv[1])
        if os.stat(".").st_dev == os.stat("..").st_dev:
            raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))   # the mount has ended meanwhile
        Workload(sys.argv[2]).run()
    except OSError as error:
        report(failed="entering the mount", error=name_of(error))
    report(ended=True)
