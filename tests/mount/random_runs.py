# SPDX-License-Identifier: Apache-2.0
"""Runs the tests of random operations, with seeds and lengths from the command line."""

import os
import shutil
import sys
from pathlib import Path

from harness import process

HERE = Path(__file__).parent


def seeds(config, default=4, full=20):
    if config.getoption("seed") is not None:
        return [config.getoption("seed")]
    return list(range(1, 1 + (config.getoption("seeds") or (full if config.getoption("full") else default))))


def operations(config, default=1500, full=5000):
    return config.getoption("ops") or (full if config.getoption("full") else default)


def run_program(name, words, dump, limit):
    """Runs a program of random operations. After a failure the list of operations is kept outside the mount, and the
    message says how to repeat them. Returns the program's output."""
    command = [sys.executable, HERE / name, *words, "--dump", dump]
    finished = process.run(command, codes=None, limit=limit)
    if finished.code != 0:
        kept = Path(os.environ.get("TMPDIR", "/var/tmp")) / f"weightfs-{dump.name}"
        shutil.copy(dump, kept)
        raise AssertionError(f"{finished}\nThe operations are in {kept}; do them again with\n"
                             f"  python {HERE / name} DIRECTORY... --replay {kept}")
    return finished.out
