# SPDX-License-Identifier: Apache-2.0
"""Stores that exist for one measurement."""
import contextlib
import os
import subprocess
import time


def wait_for_mount(daemon, mount):
    while not os.path.ismount(mount):
        if daemon.poll() is not None:
            raise RuntimeError(f"{mount}: the mount ended")
        time.sleep(0.01)


@contextlib.contextmanager
def mounted(program, store, mount, *options):
    """Mounts a store, and unmounts it at the end. Yields the pid of the mount."""
    daemon = subprocess.Popen([program, "mount", store, mount, "-f", *options], stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL)
    try:
        wait_for_mount(daemon, mount)
        yield daemon.pid
    finally:
        subprocess.run(["fusermount3", "-u", mount], check=False)   # fails if the mount has ended
        if daemon.wait(600):
            raise RuntimeError(f"{mount}: the mount ended with status {daemon.returncode}")


@contextlib.contextmanager
def new_store(program, base, size):
    """A new store below `base`, mounted. Yields the mount point and the pid of the mount."""
    mount = base / "mount"
    mount.mkdir()
    subprocess.run([program, "format", base / "store", "--size", str(size)], check=True, stdout=subprocess.DEVNULL)
    with mounted(program, base / "store", mount) as pid:
        yield mount, pid
