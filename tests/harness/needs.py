# SPDX-License-Identifier: Apache-2.0
"""Requirements of tests. A test without its requirement is skipped; the summary of the run repeats the reason."""

import importlib
import os
import shutil

import pytest

root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: run the tests as root to include it")


def program(*names, hint="scripts/setup installs it"):
    missing = [name for name in names if shutil.which(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"needs {', '.join(missing)}: {hint}")


def torch(version):
    """Requires at least this version of torch ("2.7"): Debian 13 has 2.6."""
    present = importlib.import_module("torch").__version__
    number = [tuple(int(part) for part in text.split(".")[:2]) for text in (present, version)]
    return pytest.mark.skipif(number[0] < number[1], reason=f"needs torch {version} or newer, this one is {present}")


def loop_devices():
    missing = not os.path.exists("/dev/loop-control")
    return pytest.mark.skipif(os.geteuid() != 0 or missing, reason="needs root and loop devices")
