# SPDX-License-Identifier: Apache-2.0
"""The Python package on three kinds of filesystem: a disk, memory, and a weightfs mount.

The package is the installed one (`pip install .`), or the one found through PYTHONPATH."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from operations import HERE_ON_PATH

weightfs = pytest.importorskip("weightfs", reason="the Python package is not installed: pip install . in the root")
pytest.importorskip("weightfs._native", reason="another weightfs is imported: pip install . in the root")


@pytest.fixture
def memory_folder():
    """An empty directory in memory (tmpfs)."""
    if not os.access("/dev/shm", os.W_OK):
        pytest.skip("needs /dev/shm")
    path = Path(tempfile.mkdtemp(prefix="weightfs-tests-", dir="/dev/shm"))
    yield path
    shutil.rmtree(path)


@pytest.fixture(params=["disk", "memory", "mount"])
def folder(request):
    """An empty directory on each kind of filesystem in turn."""
    return request.getfixturevalue({"disk": "local", "memory": "memory_folder", "mount": "work"}[request.param])


@pytest.fixture
def handle():
    with weightfs.aio_handle() as made:
        yield made


@pytest.fixture
def child(tmp_path):
    """Runs Python code in a separate process and returns its output. The code may import the modules of this directory.
    A hang or a crash fails the test."""

    def run(code, limit=100, **environment):
        done = subprocess.run([sys.executable, "-c", HERE_ON_PATH + code], cwd=tmp_path, timeout=limit,
                              capture_output=True, text=True, env=os.environ | environment, check=False)
        assert done.returncode == 0, f"status {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout
    return run
