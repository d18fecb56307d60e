# SPDX-License-Identifier: Apache-2.0
"""torch.distributed.checkpoint in one process, and the file operations that it consists of."""

import os

import pytest
import torch

from harness import needs
from torch_steps import equal, state


@pytest.fixture
def dcp():
    return pytest.importorskip("torch.distributed.checkpoint", reason="this torch is built without distributed")


@needs.torch("2.7")   # no_dist
@pytest.mark.parametrize("single_file", [True, False])
def test_checkpoint_of_one_process(mount, work, dcp, single_file):
    expected = {name: tensor for name, tensor in state().items() if tensor.numel()}
    writer = dcp.FileSystemWriter(str(work / "step-1"), single_file_per_rank=single_file, sync_files=True)
    dcp.save(expected, storage_writer=writer, no_dist=True)
    mount.remount()
    loaded = {name: torch.zeros_like(tensor) for name, tensor in expected.items()}
    dcp.load(loaded, checkpoint_id=str(work / "step-1"), no_dist=True)
    assert equal(loaded, expected)
    assert (work / "step-1/.metadata").exists() and not (work / "step-1/.metadata.tmp").exists()


@needs.torch("2.7")
def test_checkpoint_over_an_older_one(mount, work, dcp):
    for seed in (1, 2):
        dcp.save(state(seed), checkpoint_id=str(work / "step"), no_dist=True)
    mount.remount()
    loaded = {name: torch.zeros_like(tensor) for name, tensor in state().items()}
    dcp.load(loaded, checkpoint_id=str(work / "step"), no_dist=True)
    assert equal(loaded, state(2))


def test_metadata_is_published_by_a_rename(mount, work):
    """FileSystemWriter.finish: `.metadata.tmp`, fsync, rename."""
    for version in (b"first" * 1000, b"second" * 500):
        with open(work / ".metadata.tmp", "wb") as stream:
            stream.write(version)
            os.fsync(stream.fileno())
        os.rename(work / ".metadata.tmp", work / ".metadata")
    mount.remount()
    assert (work / ".metadata").read_bytes() == b"second" * 500
    assert os.listdir(work) == [".metadata"]
