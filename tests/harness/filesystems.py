# SPDX-License-Identifier: Apache-2.0
"""The filesystems that a test can run on: weightfs, and two others that show whether the test itself is right.

All have one interface: a Store is created once at a location, and a Mount of it has a path. `--target ext4` uses an
ext4 image instead of the store; `--target DIRECTORY` uses a plain directory, which cannot be unmounted."""

import contextlib
import os
import shlex
import shutil
import signal
import time
from pathlib import Path

from harness import process
from harness.syscalls import unmount_lazily

MOUNT_LIMIT_S = 60
UMOUNT_LIMIT_S = 120
# Mount namespaces of other tests keep every mount of the machine until they end.
KEPT_LIMIT_S = 60
LONGEST_PAUSE_S = 0.02
REPOSITORY = Path(__file__).resolve().parents[2]


def program():
    return Path(os.environ.get("WEIGHTFS_BIN", REPOSITORY / "build/release/bin/weightfs"))


def is_mounted(path):
    """Checks the mount table, because accessing the directory itself could block on a dead filesystem."""
    wanted = os.fspath(path).replace(" ", "\\040")
    with open("/proc/self/mounts", encoding="utf-8", errors="surrogateescape") as table:
        return any(line.split()[1] == wanted for line in table)


def parse_size(text):
    return int(text[:-1]) << {"K": 10, "M": 20, "G": 30, "T": 40}[text[-1]]


class Mount:
    """A mounted store at `path`. close() unmounts it if it is still mounted."""

    def __init__(self, store, path, watchdog):
        self.store, self.path, self.watchdog = store, Path(path), watchdog
        self.options = ""

    def mount(self, options=None):
        raise NotImplementedError

    def umount(self):
        raise NotImplementedError

    def remount(self, options=None):
        self.umount()
        self.mount(options)

    def remount_command(self):
        """The shell command that unmounts and mounts again."""
        raise NotImplementedError

    def fsck(self):
        """Unmounts, and asserts that a read-only check finds no problems."""
        self.umount()
        self.store.fsck()

    def alive(self):
        return True

    def close(self):
        """Whatever the state was, afterwards nothing is mounted and no process is left."""


class WeightfsStore:
    kind = "weightfs"

    def __init__(self, directory, size="256M", devices=(), sparse=True, fill=None, force=False,
                 partition=False):
        self.directory, self.size, self.devices = Path(directory), size, [Path(path) for path in devices]
        command = ["format", self.directory]
        for device in self.devices:
            command += ["--device", device]
        if not self.devices:
            command += ["--size", size]
        command += ["--fill", fill] if fill else ["--sparse"] if sparse else []
        command += ["--force"] * force + ["--partition"] * partition
        weightfs(*command, limit=300)

    def fsck(self, codes=(0,)):
        return weightfs("verify", "--catalog", self.directory, codes=codes, limit=300)

    def mount_at(self, path, watchdog):
        return WeightfsMount(self, path, watchdog)

    def daemons(self):
        return process.processes_with(program().name, os.fspath(self.directory))

    def log(self):
        path = self.directory / "weightfs.log"
        return path.read_text(errors="replace")[-8000:] if path.exists() else ""

    def remove(self):
        shutil.rmtree(self.directory, ignore_errors=True)
        for device in self.devices:
            if device.is_file():
                device.unlink()


def weightfs(*words, **options):
    return process.run([program(), *words], **options)


def errors_of(finished):
    """The lines on standard error, except the reports of `umount` that it waits, which depend on the machine's load."""
    waits = ("waiting until ", "waiting at most ")
    return [line for line in finished.err.splitlines() if not any(wait in line for wait in waits)]


def umount_by_system(path):
    """umount(8), which fails while a system call of another process uses the mount."""
    in_use = 32
    assert wait_until(lambda: process.run(["umount", path], codes=(0, in_use)).code == 0), f"{path} remains in use"


class WeightfsMount(Mount):
    def command(self, options):
        words = [program(), "mount", self.store.directory, self.path]
        return words + (["-o", options] if options else [])

    def mount(self, options=None):
        self.options = self.options if options is None else options
        self.watchdog.watch(self.path, program().name, self.store.directory)
        process.run(self.command(self.options), limit=MOUNT_LIMIT_S, on_hang=self.kill)
        assert is_mounted(self.path), f"mount of {self.path} reported success, and nothing is mounted there"
        assert self.store.daemons(), "mount reported success, and no process serves it"
        return self

    @property
    def pid(self):
        """The process ID of the daemon, or 0 if there is none."""
        return next(iter(self.store.daemons()), 0)

    def remount_command(self):
        umount = [program(), "umount", "--timeout", KEPT_LIMIT_S, self.path]
        return " && ".join(shlex.join(map(str, words)) for words in (umount, self.command(self.options)))

    def umount(self):
        if not is_mounted(self.path):
            return
        pid = self.pid
        command = [program(), "umount", "--timeout", KEPT_LIMIT_S, self.path]
        process.run(command, limit=UMOUNT_LIMIT_S, on_hang=self.kill)
        assert not is_mounted(self.path), f"umount of {self.path} reported success, and it is still mounted"
        self.watchdog.forget(self.path)
        # umount returns when all data is on the device; the process may take a moment longer to exit.
        assert process.wait_gone(pid, MOUNT_LIMIT_S), f"daemon {pid} is still there after the unmount"

    def kill(self):
        for pid in self.store.daemons():
            process.kill(pid)

    def kill9(self):
        """Kills the daemon with SIGKILL and removes the dead mount."""
        pid = self.pid
        process.kill(pid)
        assert process.wait_gone(pid), f"daemon {pid} did not end on SIGKILL"
        self.detach()

    def terminate(self):
        process.kill(self.pid, signal.SIGTERM)

    def detach(self):
        if unmount_lazily(self.path) != 0 and os.geteuid() != 0:
            process.run(["fusermount3", "-uz", self.path], codes=None)
        self.watchdog.forget(self.path)

    def alive(self):
        return is_mounted(self.path) and self.pid != 0

    def close(self):
        self.kill()
        for pid in self.store.daemons():
            process.wait_gone(pid, 20)
        while is_mounted(self.path):
            if unmount_lazily(self.path) != 0:
                process.run(["fusermount3", "-uz", self.path], codes=None)
                break
        self.watchdog.forget(self.path)


class Ext4Store:
    """An ext4 image. It can be unmounted, but has no daemon to kill."""

    kind = "ext4"

    def __init__(self, directory, size="256M", **_):
        self.directory = Path(directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        self.image = self.directory / "image"
        with open(self.image, "wb") as stream:
            # The journal and tables do not count toward the size that a test requests.
            stream.truncate(parse_size(size) + (64 << 20))
        process.run(["mkfs.ext4", "-q", "-m", "0", "-b", "4096", "-N", "200000" if parse_size(size) >= 256 << 20
                     else "2000", self.image], limit=120)

    def fsck(self, codes=(0,)):
        return process.run(["fsck.ext4", "-fn", self.image], codes=codes, limit=300)

    def mount_at(self, path, watchdog):
        return Ext4Mount(self, path, watchdog)

    def log(self):
        return ""

    def remove(self):
        shutil.rmtree(self.directory, ignore_errors=True)


class Ext4Mount(Mount):
    COMMAND = ["mount", "-o", "loop,acl,user_xattr"]

    def mount(self, options=None):
        process.run(self.COMMAND + [self.store.image, self.path])
        self.watchdog.watch(self.path)
        return self

    def remount_command(self):
        return " && ".join(shlex.join(map(str, words)) for words in (
            ["umount", self.path], [*self.COMMAND, self.store.image, self.path]))

    def umount(self):
        if is_mounted(self.path):
            process.run(["umount", self.path], limit=UMOUNT_LIMIT_S)
            self.watchdog.forget(self.path)

    def alive(self):
        return is_mounted(self.path)

    def close(self):
        unmount_lazily(self.path)
        self.watchdog.forget(self.path)


class PlainStore:
    kind = "directory"

    def __init__(self, base, name):
        self.directory = Path(base) / f"weightfs-tests-{os.getpid()}-{name}"
        self.directory.mkdir(mode=0o755)

    def fsck(self, codes=(0,)):
        return None

    def mount_at(self, path, watchdog):
        return PlainMount(self, self.directory, watchdog)

    def log(self):
        return ""

    def remove(self):
        shutil.rmtree(self.directory, ignore_errors=True)


class PlainMount(Mount):
    def mount(self, options=None):
        return self

    def umount(self):
        os.sync()

    def remount_command(self):
        return "sync"


class Factory:
    """Creates stores and mounts below one scratch directory, and removes all of them at the end."""

    def __init__(self, scratch, target, watchdog):
        self.scratch, self.target, self.watchdog = Path(scratch), target, watchdog
        self._made, self._count = [], 0

    @property
    def kind(self):
        return self.target if self.target in ("weightfs", "ext4") else "directory"

    def new_path(self, name):
        self._count += 1
        return self.scratch / f"{name}-{self._count}"

    def store(self, size="256M", at=None, **options):
        if self.kind == "weightfs":
            store = WeightfsStore(at or self.new_path("store"), size, **options)
        elif self.kind == "ext4":
            store = Ext4Store(self.new_path("image"), size)
        else:
            store = PlainStore(self.target, self._count)
            self._count += 1
        self._made.append(store)
        return store

    def adopt(self, store):
        """Removes a store that somebody else has created."""
        self._made.append(store)
        return store

    def mount(self, store, options="", path=None):
        if path is None:
            path = self.new_path("mount")
            path.mkdir(mode=0o755)
        mount = store.mount_at(path, self.watchdog)
        self._made.append(mount)
        return mount.mount(options)

    def directory(self, name="local"):
        """Creates a directory on the local disk."""
        path = self.new_path(name)
        path.mkdir(mode=0o755)
        return path

    def mark(self):
        return len(self._made)

    def close(self, mark=0):
        """Removes everything that was created since `mark`, newest first."""
        while len(self._made) > mark:
            made = self._made.pop()
            if isinstance(made, Mount):
                made.close()
            else:
                made.remove()


def wait_until_it_polls(command, times):
    """Waits until a command has ended, or has slept so often."""
    def sleeps():
        with contextlib.suppress(OSError):
            text = Path(f"/proc/{command.pid}/status").read_text()
            return int(text.partition("\nvoluntary_ctxt_switches:")[2].split()[0])
        return 0

    enough = sleeps() + times
    assert wait_until(lambda: command.poll() is not None or sleeps() > enough)


def wait_until(condition, limit=60):
    """Polls for a condition of another process or the kernel that sends no notification. Returns whether it became true
    in time."""
    end, pause = time.monotonic() + limit, 0.0001
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(pause)   # what it waits for needs the processor
        pause = min(2 * pause, LONGEST_PAUSE_S)
    return True
