# SPDX-License-Identifier: Apache-2.0
"""weightfs-checkpoint and examples/checkpoint.py."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch.distributed.checkpoint", reason="this torch is built without distributed")

from weightfs.tools import checkpoint as tool  # noqa: E402

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/checkpoint.py"
NAMES = list(tool.WAYS)


def test_every_way_is_measured_in_both_directories(local, memory_folder, capfd):
    assert tool.main([str(local), "--compare", str(memory_folder), "--size", "5M", "--rounds", "2"]) == 0
    table = capfd.readouterr().out
    assert "medians of 2 rounds" in table and "how many times as fast as torch.save, fsync, compared" in table
    row = r"^(\w.*?) {2,}([0-9.]+) \(.*?\) +([0-9.]+) +([0-9.]+) \(.*?\) +([0-9.]+)$"
    rows = re.findall(row, table, re.MULTILINE)
    assert [name for name, *_ in rows] == [f"{name}, {where}" for where in ("here", "compared") for name in NAMES]
    assert rows[len(NAMES)][2] == rows[len(NAMES)][4] == "1.00" and f"compared: {memory_folder}" in table
    assert os.listdir(local) == os.listdir(memory_folder) == []


def test_json_has_the_seconds_of_each_round(local, capfd):
    assert tool.main([str(local), "--size", "4097", "--rounds", "3", "--json"]) == 0
    report = json.loads(capfd.readouterr().out)
    stall, durable = (row["ways"] for row in report["rows"])
    assert list(stall) == list(durable) == NAMES
    for name in NAMES:
        assert len(stall[name]["samples"]) == len(durable[name]["samples"]) == 3
        assert all(0 < one <= other for one, other in zip(stall[name]["samples"], durable[name]["samples"]))


@pytest.mark.parametrize("wrong, reason", [([], "required"), (["/nowhere"], "no such directory"),
                                           (["/tmp", "--compare", "/nowhere"], "no such directory"),
                                           (["/tmp", "--size", "much"], "not a size"),
                                           (["/tmp", "--rounds", "0"], "at least 1")])
def test_wrong_arguments_are_reported(capfd, wrong, reason):
    with pytest.raises(SystemExit) as ended:
        tool.main(wrong)
    assert ended.value.code == 2 and reason in capfd.readouterr().err


def test_a_directory_that_cannot_be_written_is_one_line(capfd):
    assert tool.main(["/proc", "--size", "1M"]) == 1
    assert re.fullmatch(r"weightfs-checkpoint: .*/proc/.*\n", capfd.readouterr().err)


def example(*words):
    done = subprocess.run([sys.executable, EXAMPLE, *map(str, words)], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_the_example_resumes_after_a_kill(work):
    status, shown = example(work / "run", "--steps", 12, "--every", 4, "--kill-at", 10)
    assert status == 0 and "step 10: killed" in shown
    resumed = re.search(r"resumed from step (\d+)", shown)
    assert int(resumed[1]) in (4, 8) and "finished at step 12; saved are [4, 8, 12]" in shown
    assert shown.endswith("the weights equal those of a training without a kill\n")
    status, shown = example(work / "run", "--steps", 13, "--kill-at", 0)
    assert status == 0 and "resumed from step 12" in shown and "killed" not in shown


def test_the_example_refuses_wrong_numbers(local):
    status, shown = example(local, "--steps", 0)
    assert status == 2 and "begin at 1" in shown
