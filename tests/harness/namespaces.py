# SPDX-License-Identifier: Apache-2.0
"""Mount namespaces of single tests, so that a test can change what the machine lacks without changing the machine."""

import contextlib
import ctypes
import errno
import os
import re
import stat
from pathlib import Path

from harness.filesystems import wait_until
from harness.syscalls import checked, errno_of, unmount_lazily

CLONE_NEWNS = 0x00020000
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
FUSE_DEVICE = os.makedev(10, 229)


def mount(source, target, kind, flags=0, options=""):
    checked("mount", *(os.fsencode(word) for word in (source, target, kind)), ctypes.c_ulong(flags),
            os.fsencode(options))


def unmount(target):
    """Unlike umount(8), waits for the end of other processes' system calls that use the mount."""
    def is_unmounted():
        number = errno_of(checked, "umount2", os.fsencode(target), 0)
        assert number in (0, errno.EBUSY), f"umount of {target}: {os.strerror(number)}"
        return number == 0

    assert wait_until(is_unmounted), f"{target} stays busy"


def detach_mounts_of_others(own):
    """Unmounts the weightfs mounts outside of the directory `own`, for this mount namespace: those of tests that run at
    the same time. Their unmounts would wait for the end of the namespace."""
    for line in Path("/proc/thread-self/mountinfo").read_bytes().split(b"\n"):
        before, _, after = line.partition(b" - ")
        if not after.startswith(b"fuse.weightfs "):
            continue
        escaped = before.split(b" ")[4]   # a space is \040
        path = re.sub(rb"\\([0-7]{3})", lambda code: bytes([int(code[1], 8)]), escaped)
        if Path(own) not in Path(os.fsdecode(path)).parents:
            unmount_lazily(path)


@contextlib.contextmanager
def own_mounts(own=None):
    """This thread, and the processes that it starts, get mounts of their own. Processes that were started before do not
    see them. The mounts end with the block and those processes. If they may last longer than a few seconds, `own` is the
    directory of the tests that need the mounts of before."""
    before = os.open("/proc/thread-self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    folder = os.getcwd()
    try:
        checked("unshare", CLONE_NEWNS)
        try:
            mount("none", "/", "", MS_REC | MS_PRIVATE)
            if own is not None:
                detach_mounts_of_others(own)
            yield
        finally:
            checked("setns", before, CLONE_NEWNS)
            os.chdir(folder)   # setns(2) changes to the root
    finally:
        os.close(before)


def every_user_may_open_fuse():
    return stat.S_IMODE(os.stat("/dev/fuse").st_mode) & 0o006 == 0o006


@contextlib.contextmanager
def open_fuse_device(scratch):
    """A /dev/fuse of mode 0666, as distributions have it, in a mount namespace of its own. Raises OSError where the
    machine allows no such namespace or no device node."""
    if every_user_may_open_fuse():
        yield
        return
    folder = scratch / "device"
    folder.mkdir(exist_ok=True)
    with own_mounts(own=scratch):
        mount("weightfs-tests", folder, "tmpfs")   # other filesystems may be mounted with nodev
        node = folder / "fuse"
        os.mknod(node, stat.S_IFCHR | 0o666, FUSE_DEVICE)
        node.chmod(0o666)   # whatever the umask is
        mount(node, "/dev/fuse", "", MS_BIND)
        yield
