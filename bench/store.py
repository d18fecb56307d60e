# SPDX-License-Identifier: Apache-2.0
"""Stores and directories that exist for one measurement, and are removed at the end."""

import contextlib
import os
import shutil

from .machine import cpu_seconds, mounts, sync_file
from .program import Failure, command, uninterrupted


@contextlib.contextmanager
def scratch_directory(parent, name="weightfs-bench"):
    """A new directory of this process. It is removed at the end with all its content."""
    path, made = f"{parent}/{name}-{os.getpid()}", False
    try:
        with uninterrupted():
            os.mkdir(path, 0o755)
            made = True
        yield path
    finally:
        # Never deletes through a mount that could not be unmounted.
        if made and not any(point.startswith(f"{os.path.realpath(path)}/") for _, point, _ in mounts()):
            with uninterrupted():
                shutil.rmtree(path)


def daemon_of(store):
    """The process that serves a store, as recorded in its lock file."""
    descriptor = os.open(f"{store}/lock", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(descriptor, encoding="ascii", errors="replace") as stream:
        pid = (stream.read(32).split() or ["0"])[0]
    if not pid.isdigit() or not os.path.exists(f"/proc/{pid}/stat"):
        raise Failure(f"{store}: no process serves this store here")
    return int(pid)


class Store:
    """A store in a new directory, formatted and mounted at the beginning, unmounted and deleted at the end.
    `before_failure` is called first if something failed: it ends the processes that may be using the mount."""

    def __init__(self, program, path, size, fill="auto", options="", before_failure=lambda: None):
        self.program, self.path, self.options, self.before_failure = program, path, options, before_failure
        self.store, self.mount, self.format_words = f"{path}/store", f"{path}/mount", ("--size", size, "--fill", fill)

    @property
    def daemon(self):
        return daemon_of(self.store)

    def __enter__(self):
        os.mkdir(self.path)
        os.mkdir(self.mount)
        try:
            command(self.program, "format", self.store, *self.format_words)
            self.mount_it()
        except BaseException as error:
            self.__exit__(error)
            raise
        return self

    def mount_it(self):
        command(self.program, "mount", self.store, self.mount, *(("-o", self.options) if self.options else ()))

    def unmount(self):
        command(self.program, "umount", self.mount)

    def __exit__(self, error, *_):
        # An unmount fails if data was not written (exit 1) or the daemon still runs (exit 3), and that is raised.
        with uninterrupted():
            if error is not None:
                self.before_failure()
            if any(point == os.path.realpath(self.mount) for _, point, _ in mounts()):
                self.unmount()
            os.rmdir(self.mount)
            shutil.rmtree(self.path)


class Directory:
    """A directory in which files are measured by a worker: in a weightfs mount (`daemon` is its process), or on the
    host's filesystem. `drop_caches` is called whenever files become cold."""

    def __init__(self, worker, path, daemon=None, drop_caches=lambda: None):
        self.worker, self.path, self.daemon, self.drop_caches = worker, path, daemon, drop_caches

    def file(self, name):
        return f"{self.path}/{name}"

    def cpu_seconds(self):
        return cpu_seconds(self.daemon) if self.daemon else 0

    def counters(self):
        return self.worker.ask("counters", path=self.path) if self.daemon else {}

    def make_cold(self, *paths):
        """Writes the dirty data of files, or of the files in directories, and drops their pages from the kernel's and
        the daemon's caches."""
        files = [file for path in paths for file in ([entry.path for entry in os.scandir(path)]
                                                     if os.path.isdir(path) else [path])]
        self.worker.ask("cold", paths=files, on_mount=self.daemon is not None)
        self.drop_caches()

    def remove(self, *names):
        """Deletes files or directories, if they exist, and waits until the filesystem has processed the deletion."""
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(self.file(name)) if os.path.isdir(self.file(name)) else os.unlink(self.file(name))
        sync_file(self.path)
