# SPDX-License-Identifier: Apache-2.0
"""Shared code of the lease tests: content, the mount's statistics, and processes that hold leases."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from harness import process
from harness.filesystems import wait_until, weightfs

MIB = 1 << 20
# For programs of the same network namespace, and of others.
LISTENERS = 2 if os.geteuid() == 0 or "XDG_RUNTIME_DIR" in os.environ else 1

def pattern(size, seed=0):
    return bytes((index * 31 + index // 251 + seed * 7) & 0xFF for index in range(size))


def statistics(mount):
    return json.loads(weightfs("info", "--json", mount.path).out)["statistics"]


def descriptors(mount):
    """Number of descriptors that the daemon has of each file, except the catalog's, which RocksDB opens and closes at
    any time."""
    return Counter("socket" if target.startswith("socket:") else target
                   for target in process.open_files(mount.pid) if "/meta/" not in target)


def descriptors_at_rest(mount, most=None):
    """Like descriptors(), after the daemon has closed all connections of earlier tests, so only its listening sockets
    remain, and, if `most` is given, no descriptors but those. A mount that starts connects to the sockets of all
    others, to find dead ones."""
    found = Counter()

    def are_at_rest():
        nonlocal found
        found = descriptors(mount)
        return found["socket"] == LISTENERS and (most is None or found <= most)

    assert wait_until(are_at_rest), f"descriptors leaked: {found - (most or Counter())}"
    return found


def comes_to(mount, **expected):
    """Waits for the mount's statistics to reach these values. The daemon notices the end of a connection or process a
    moment later, and then releases its resources one by one."""
    return wait_until(lambda: expected.items() <= statistics(mount).items())


def free_at_rest(mount, path):
    """The free space after the daemon has finished the work left by earlier tests."""
    descriptors_at_rest(mount)
    assert comes_to(mount, leases=0, pinned_bytes=0, granted_bytes=0, dirty_bytes=0)
    # The kernel may still be sending the closes of their files.
    assert wait_until(lambda: free(path) == free(path))
    return free(path)


def free(path):
    # Deleted space is free once its commit is durable.
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


def refusal(function, *arguments, **options):
    """The errno that a call fails with."""
    with pytest.raises(OSError) as caught:
        function(*arguments, **options)
    return caught.value.errno


class Holder:
    """A process that holds a lease. It reports when it has the lease and then waits forever."""

    def __init__(self, code, *arguments, **options):
        folders = [os.fspath(folder) for folder in Path(__file__).parents[:2]]
        text = f"import sys, os, signal\nsys.path[:0] = {folders!r}\n" \
               f"from lease_client import *\n{code}\nprint('held', flush=True)\nsignal.pause()\n"
        self.process = subprocess.Popen([sys.executable, "-c", text, *map(str, arguments)], stdout=subprocess.PIPE,
                                        **options)
        try:
            assert self.process.stdout.readline() == b"held\n"
        except BaseException:
            self.kill()
            raise

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()


READS = """
file = os.open(sys.argv[1], os.O_RDONLY)
token, name = ticket(file)
lease = Lease(name)
lease.read(token)
"""
RESERVES = """
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
token, name = ticket(file)
lease = Lease(name)
lease.fill(lease.reserve(token, int(sys.argv[2])), b"never committed" * 1000)
os.close(file)
"""


PASSES = "socket.send_fds(socket.socket(fileno=int(sys.argv[3])), [b'x'], lease.devices)\n"
