# SPDX-License-Identifier: Apache-2.0
"""Test data for the clients."""

import os
import random
from pathlib import Path

import pytest


def fill(root, seed=5):
    """Creates a small source tree: sizes around all boundaries, a hole, both kinds of links, odd names, modes and
    times."""
    random_bytes = random.Random(seed).randbytes
    root = Path(root)
    for name in ("a", "a/b", "a/b/c", "empty", "name with spaces"):
        (root / name).mkdir(parents=True, exist_ok=True)
    for size in (0, 1, 511, 4095, 4096, 4097, 65536, 65537, 1048575, 1048577, 3_000_001):
        (root / f"a/file-{size}").write_bytes(random_bytes(size))
    (root / "name with spaces/ünïcödé ☃").write_bytes(random_bytes(100))
    (root / ("n" * 255)).write_bytes(b"the longest name")
    with open(root / "sparse", "wb") as stream:
        stream.truncate(8 << 20)
        os.pwrite(stream.fileno(), random_bytes(70_000), 3 << 20)
    os.link(root / "a/file-65536", root / "a/b/hard link")
    os.symlink("../file-4096", root / "a/b/relative link")
    os.symlink("/nowhere/at/all", root / "dangling")
    os.chmod(root / "a/file-1", 0o6751)
    os.chmod(root / "a/b/c", 0o2775)
    for index, name in enumerate(("a/file-1", "a/b/c", "a/file-4096", "sparse", "a/b", "a", "empty")):
        os.utime(root / name, ns=(1_600_000_000_123_456_789, 1_500_000_000_000_000_001 + index * 1_000_000_007))
    return root


@pytest.fixture
def source(local):
    return fill(local / "source")
