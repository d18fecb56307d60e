# SPDX-License-Identifier: Apache-2.0
"""Settings of the machine that single tests change, with the marker `alone` if others would notice."""

import contextlib
import os
import re
from pathlib import Path

import pytest

from harness.filesystems import wait_until
from harness.syscalls import errno_of

HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")


@contextlib.contextmanager
def memory_group():
    """A new control group for memory, and the name of its limit: version 2 or 1."""
    root = Path("/sys/fs/cgroup")
    for root, limit in ((root, "memory.max"), (root / "memory", "memory.limit_in_bytes")):
        group = root / f"weightfs-tests-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        if (group / limit).exists():
            try:
                yield group, limit
            finally:
                wait_until(lambda group=group: errno_of(os.rmdir, group) == 0)
            return
        group.rmdir()
    pytest.skip("needs a control group for memory, which this machine does not let the tests create")


@contextlib.contextmanager
def without_huge_pages():
    """Shared memory has no huge pages, whatever the mount of its tmpfs says."""
    try:
        before = re.search(r"\[(\w+)\]", HUGE_PAGES.read_text(encoding="ascii"))[1]
        HUGE_PAGES.write_text("deny", encoding="ascii")
    except OSError as error:
        pytest.skip(f"needs to set the huge pages of shared memory: {error}")
    try:
        yield
    finally:
        HUGE_PAGES.write_text(before, encoding="ascii")


def meminfo(name):
    """A value of /proc/meminfo, in bytes."""
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{name}:"))
