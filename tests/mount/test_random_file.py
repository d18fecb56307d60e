# SPDX-License-Identifier: Apache-2.0
"""Random operations on one file agree with a model in memory: buffered, direct and mapped access mixed with truncation,
fallocate, copy_file_range, reopening and remounting; hot memory keeps what it was."""

import pytest

import random_runs

MOUNT_OPTIONS = "cache_memory=64M"


def pytest_generate_tests(metafunc):
    if "seed" in metafunc.fixturenames:
        metafunc.parametrize("seed", random_runs.seeds(metafunc.config))


@pytest.mark.limit(900)
def test_operations_equal_the_model(mount, work, local, seed, pytestconfig):
    count = random_runs.operations(pytestconfig)
    words = [work, "--seed", seed, "--ops", count, "--remount", mount.remount_command()]
    out = random_runs.run_program("random_file.py", words, local / f"file-{seed}.ops", limit=600)
    assert mount.store.kind != "weightfs" or count < 500 or not out.startswith("0 maps")
