# SPDX-License-Identifier: Apache-2.0
"""Random operations on names give the same results, errnos and trees as on the local filesystem, for root and two
other users."""

import os

import pytest

import random_runs
from harness import needs
from harness.tree import differences, snapshot

MOUNT_OPTIONS = "allow_other,dev,suid"


def pytest_generate_tests(metafunc):
    if "seed" in metafunc.fixturenames:
        metafunc.parametrize("seed", random_runs.seeds(metafunc.config))


@needs.root
@pytest.mark.limit(900)
def test_operations_equal_those_of_the_local_filesystem(mount, work, local, seed, pytestconfig):
    reference = local / "reference"
    reference.mkdir()
    words = [work, reference, "--seed", seed, "--ops", random_runs.operations(pytestconfig)]
    random_runs.run_program("random_namespace.py", words, local / f"names-{seed}.ops", limit=600)
    mount.remount()
    assert differences(snapshot(reference), snapshot(work)) == []
    os.chmod(work, 0o755)
