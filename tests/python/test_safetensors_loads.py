# SPDX-License-Identifier: Apache-2.0
"""weightfs-loads, and the example that streams weights."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from weightfs.tools import loads

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/stream_weights.py"


@pytest.fixture
def two_loaders(monkeypatch):
    """Only weightfs and the library, so that the test does not depend on what is installed."""
    names = ["weightfs load_file", "weightfs stream", "safetensors"]
    monkeypatch.setattr(loads, "installed", lambda: (names, {"tensorizer": "ModuleNotFoundError: it is not there"}))
    return names


def test_it_measures_all_loaders_and_names_the_missing_ones(folder, two_loaders, capfd):
    assert loads.main([str(folder), "--size", "8M", "--rounds", "2"]) == 0
    out, err = capfd.readouterr()
    for name in two_loaders:
        assert re.search(rf"^{name} +\d+\.\d+ +\d+\.\d+  \d+\.\d+$", out, re.MULTILINE)
    assert "ratio to safetensors" in out
    assert "NOT MEASURED: tensorizer: ModuleNotFoundError: it is not there" in err and "round 2 of 2" in err
    assert os.listdir(folder) == []


def test_json_has_all_measurements(local, two_loaders, capfd):
    assert loads.main([str(local), "--size", "8M", "--rounds", "3", "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["best_peer"] == "safetensors" and list(found["not_measured"]) == ["tensorizer"]
    assert [row["loader"] for row in found["loads"]] == two_loaders
    assert all(len(row["seconds"]) == 3 and row["median_s"] == sorted(row["seconds"])[1] for row in found["loads"])
    assert found["loads"][2]["ratio"] == 1.0


@pytest.mark.parametrize("name", loads.LOADERS)
def test_every_loader_that_is_installed_loads_what_was_saved(local, name):
    if name not in loads.installed()[0]:
        pytest.skip(f"{name} is not installed: {loads.installed()[1][name]}")
    assert len(loads.measure(str(local), 8 << 20, 1, [name], lambda text: None)[name]) == 1


def test_a_loader_that_loads_something_else_is_an_error(local, two_loaders, monkeypatch, capfd):
    def wrong(path):
        return {name: tensor + 1 for name, tensor in loads._load_file(path).items()}

    monkeypatch.setitem(loads.LOADERS, "safetensors", ("safetensors", wrong, False))
    assert loads.main([str(local), "--size", "8M"]) == 1
    assert "weightfs-loads: safetensors: " in capfd.readouterr().err and os.listdir(local) == []


@pytest.mark.parametrize("options, error", [(["--size", "many"], "'many' is not a size"), (["--rounds", "0"], "--rounds"),
                                            (["--size", "900000G"], "no space")], ids=str)
def test_wrong_arguments_are_rejected(local, options, error, capfd):
    with pytest.raises(SystemExit) as caught:
        loads.main([str(local), *options])
    assert caught.value.code == 2 and error in capfd.readouterr().err
    with pytest.raises(SystemExit):
        loads.main([str(local / "missing")])


def test_the_example_streams_a_model_larger_than_its_memory(folder):
    done = subprocess.run([sys.executable, EXAMPLE, folder, "--size", "64M", "--memory", "16M"], capture_output=True,
                          text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "the same result" in done.stdout and os.listdir(folder) == []
