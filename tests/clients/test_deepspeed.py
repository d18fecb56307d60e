# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed with the swap folder on a mount and the I/O of weightfs: ZeRO-3 with offload, ZeRO-Inference, and
FastFileWriter."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.filesystems import weightfs

STORE_SIZE = "512M"
STEPS = Path(__file__).with_name("deepspeed_steps.py")
MISSING = [name for name in ("torch", "deepspeed", "transformers", "weightfs") if importlib.util.find_spec(name) is None]

pytestmark = [pytest.mark.limit(500), pytest.mark.skipif(bool(MISSING), reason=(
    f"needs {', '.join(MISSING)}: scripts/setup installs it"))]


def run(what, folder):
    """The result of the unmodified program, which runs with our builders."""
    done = subprocess.run([sys.executable, "-m", "weightfs.deepnvme", STEPS, what, str(folder)], capture_output=True,
                          text=True, timeout=400, check=False, env=os.environ | {"DS_ACCELERATOR": "cpu"})
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    assert "weightfs.deepnvme: replaced AsyncIOBuilder" in done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("result ")]
    return json.loads(lines[-1].partition(" ")[2])


def leased(mount):
    """The bytes that were read and written by leases."""
    statistics = json.loads(weightfs("info", "--json", mount.path).out)["statistics"]
    return statistics["leased_read_bytes"], statistics["leased_written_bytes"]


@pytest.mark.parametrize("what", ["train", pytest.param("infer", marks=pytest.mark.full)])
def test_offload_to_a_mount_gives_the_same_numbers(mount, work, what):
    before = leased(mount)
    assert run(what, work) == run(what, "none")
    assert all(now - then >= 4 << 20 for now, then in zip(leased(mount), before))
    assert list(work.glob("zero_stage_3/*/rank0/*.swp"))


def test_fast_file_writer_writes_the_same_bytes(mount, work):
    before = leased(mount)[1]
    assert run("write", work) is True
    assert leased(mount)[1] - before >= 4 << 20


@pytest.mark.full
def test_the_example_compares_the_swappers(mount, work):
    example = Path(__file__).resolve().parents[2] / "examples/offload_deepspeed.py"
    done = subprocess.run([sys.executable, example, work, "--layers", "2", "--width", "256", "--memory", "24M", "--steps",
                           "2", "--json"], capture_output=True, text=True, timeout=400, check=False,
                          env=os.environ | {"DS_ACCELERATOR": "cpu"})
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    found = json.loads(done.stdout)
    assert {len(times) for times in found["seconds"].values()} == {2}
    assert os.listdir(work) == []
