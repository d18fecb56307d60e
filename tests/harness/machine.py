# SPDX-License-Identifier: Apache-2.0
"""Settings of the machine that single tests change, with the marker `alone` if others would notice."""

import contextlib
import os
from pathlib import Path

import pytest

from harness.filesystems import wait_until
from harness.syscalls import errno_of


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
