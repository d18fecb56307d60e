# SPDX-License-Identifier: Apache-2.0
"""Programs that keep the kernel's pages busy: no deadlock occurs, and the mount can end meanwhile."""

import contextlib
import os
import signal
import subprocess
import sys

import pytest

from harness import process
from harness.filesystems import is_mounted

pytestmark = pytest.mark.usefixtures("weightfs_only")
MIB = 1 << 20
SIZE = 8 * MIB

# Roles of programs that share one file. All except "truncate" run until they are killed.
PROGRAM = f"""
import fcntl, itertools, mmap, os, sys
role, path = sys.argv[1:]
size = {SIZE}
IOC_DROP_CACHE = (ord("W") << 8) | 4
file = os.open(path, os.O_RDWR)
print("ready", flush=True)
if role == "map":
    mapping = mmap.mmap(file, size)
    for turn in itertools.count():
        for page in range(0, {MIB}, 4096):
            mapping[page] = turn & 255
while role == "drop":
    fcntl.ioctl(file, IOC_DROP_CACHE)
while role == "seek":
    os.lseek(file, 0, os.SEEK_DATA)
if role == "truncate":
    for turn in range(300):
        os.ftruncate(file, size - 5000)
        os.ftruncate(file, size)
"""


@contextlib.contextmanager
def programs(path, *roles):
    with open(path, "wb") as file:
        file.truncate(SIZE)
    running = []
    try:
        for role in roles:
            running.append(subprocess.Popen([sys.executable, "-c", PROGRAM, role, path], text=True,
                                            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL))
        for each in running:
            assert each.stdout.readline() == "ready\n"
        yield running
    finally:
        for each in running:
            each.kill()
        for each in running:
            each.communicate(timeout=60)


@pytest.mark.limit(300)
def test_truncations_end_while_others_drop_pages_of_a_mapping(factory):
    """The kernel writes no pages of a file while it truncates it, so a request to drop them blocks."""
    mount = factory.mount(factory.store("128M"))
    with programs(mount.path / "file", "map", *["drop"] * 8, "truncate") as running:
        process.finish(running[-1], limit=240)
    mount.fsck()


@pytest.mark.limit(300)
def test_a_mount_ends_while_programs_change_a_mapping_and_seek_in_it(factory):
    """A seek needs the changes of the mapping, which must come through the mount that is ending."""
    mount = factory.mount(factory.store("128M"))
    for _ in range(3):
        with programs(mount.path / "file", "map", "seek", "seek", "drop"):
            pid = mount.pid
            process.kill(pid, signal.SIGTERM)
            assert process.wait_gone(pid, 60) and not is_mounted(mount.path)
        mount.store.fsck()
        mount.mount()
    assert os.listdir(mount.path) == ["file"]
