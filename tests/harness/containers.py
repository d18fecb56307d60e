# SPDX-License-Identifier: Apache-2.0
"""Containers of podman whose root filesystem is this machine's programs, read-only. They need no image and no network,
and everything that podman stores is below one directory."""

import contextlib
import os
import shutil
import sys
import tempfile
from pathlib import Path

from harness import process
from harness.filesystems import REPOSITORY, program
from harness.namespaces import MS_BIND, mount, own_mounts
from harness.syscalls import unmount_lazily

CGROUP2_MAGIC = 0x63677270
MS_SHARED = 1 << 20
LIMIT_S = 60


def is_cgroup2(path):
    return process.run(["stat", "-f", "-c", "%t", path], codes=None).out.strip() == f"{CGROUP2_MAGIC:x}"


@contextlib.contextmanager
def mounts_for_containers(shared):
    """Mounts of our own in which podman starts: with version 2 of the cgroups, because crun starts nothing where both
    versions are mounted. Mounts below the directory `shared` reach containers that have it with rslave."""
    with own_mounts(own=Path(shared).parent):
        if not is_cgroup2("/sys/fs/cgroup"):
            mount("cgroup2", "/sys/fs/cgroup", "cgroup2")
        mount(shared, shared, "", MS_BIND)
        mount("none", shared, "", MS_SHARED)
        try:
            yield
        finally:
            unmount_lazily(shared)


class Podman:
    """Runs containers as this user, or without root as the user `uid`. Used by one thread."""

    def __init__(self, directory, uid=None):
        self.directory, self.uid = Path(directory), uid
        self.root = self.directory / "root"
        self.state = Path(tempfile.mkdtemp(prefix="weightfs-", dir="/tmp"))   # podman accepts 50 characters at most
        self.environment = {**os.environ, "HOME": f"{self.directory}/home", "XDG_RUNTIME_DIR": os.fspath(self.state)}
        for name in ("DBUS_SESSION_BUS_ADDRESS", "CONTAINER_HOST", "CONTAINERS_CONF"):
            self.environment.pop(name, None)
        for path in (self.directory, self.directory / "home", self.root):
            path.mkdir(mode=0o700, exist_ok=True)
        self.volumes = self._fill_root()
        if uid is not None:
            process.run(["chown", "-hR", f"{uid}:{uid}", self.directory, self.state])

    def _fill_root(self):
        """Makes the mount points, and returns the options that mount this machine's programs on them."""
        for name in ("dev", "proc", "run", "sys", "tmp", "var"):
            (self.root / name).mkdir()
        for name in ("bin", "lib", "lib32", "lib64", "sbin"):
            if os.path.islink(f"/{name}"):
                os.symlink(os.readlink(f"/{name}"), self.root / name)
        folders = {Path(name) for name in ("/usr", "/etc", "/bin", "/lib", "/lib64", "/sbin")
                   if not os.path.islink(name) and os.path.isdir(name)}
        wanted = [REPOSITORY, program().resolve().parent]
        if self.uid is None:   # others may not reach this Python
            wanted += [Path(path) for path in (sys.prefix, sys.base_prefix, *sys.path) if os.path.isdir(path)]
        for path in sorted(wanted):
            if path.is_absolute() and not any(path == other or other in path.parents for other in folders):
                folders.add(path)
        return [word for path in sorted(folders) for word in ("-v", f"{path}:{path}:ro")]

    def __call__(self, *words, **options):
        as_user = ["setpriv", f"--reuid={self.uid}", f"--regid={self.uid}", "--clear-groups"]
        privileges = as_user if self.uid is not None else []
        stores = ["--root", f"{self.directory}/storage", "--runroot", f"{self.state}/storage",
                  "--tmpdir", f"{self.state}/tmp", "--storage-driver", "vfs", "--events-backend", "file",
                  "--cgroup-manager", "cgroupfs"]
        return process.run([*privileges, "podman", *stores, *words], env=self.environment, cwd=self.directory,
                           **{"limit": LIMIT_S, **options})

    def create(self, verb, options, command):
        # podman's own limits are above what a user without CAP_SYS_RESOURCE may set.
        limits = ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1000:1000"]
        network = [] if "--network" in options else ["--network", "none"]
        return [*verb, "--cgroups", "disabled", *limits, *network, *self.volumes, *options, "--rootfs", self.root,
                *command]

    def run(self, *command, options=(), **others):
        """Runs a command in a container of its own, which is removed with its end."""
        return self(*self.create(["run", "--rm"], [*options], command), **others)

    @contextlib.contextmanager
    def running(self, options=()):
        """A container that runs during the block. Yields a function that runs a command in it."""
        container = self(*self.create(["run", "-d"], [*options], ["sleep", "infinity"])).out.strip()
        try:
            yield lambda *command, **others: self("exec", container, *command, **others)
        finally:
            self("rm", "-f", "-t", "0", container)

    def close(self):
        for path in (self.directory, self.state):
            shutil.rmtree(path, ignore_errors=True)
