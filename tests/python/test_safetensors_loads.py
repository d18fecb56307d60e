# SPDX-License-Identifier: Apache-2.0
"""weightfs-loads, and the example that streams weights."""

import argparse
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
        assert re.search(rf"^{name} +\d+\.\d+ \(\d+\.\d+–\d+\.\d+\) +\d+\.\d+$", out, re.MULTILINE)
    assert "how many times as fast as safetensors" in out and err == ""
    assert "loads, tensorizer: not measured: ModuleNotFoundError: it is not there" in out
    assert os.listdir(folder) == []


def test_json_has_all_measurements(local, two_loaders, capfd):
    assert loads.main([str(local), "--size", "8M", "--rounds", "3", "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    row, = found["rows"]
    assert list(row["not_measured"]) == ["tensorizer"] and list(row["ways"]) == two_loaders
    assert all(len(way["samples"]) == 3 and way["median"] == sorted(way["samples"])[1] for way in row["ways"].values())
    assert {"way": "safetensors", "against": "safetensors", "value": 1.0} in row["checks"]


@pytest.mark.parametrize("name", loads.LOADERS)
def test_every_loader_that_is_installed_loads_what_was_saved(local, name):
    if name not in loads.installed()[0]:
        pytest.skip(f"{name} is not installed: {loads.installed()[1][name]}")
    values = {name: []}
    loads.measure(values, argparse.Namespace(directory=str(local), size=8 << 20, rounds=1, hot=False), lambda *_: None)
    assert len(values[name]) == 1


def test_a_loader_that_loads_something_else_is_an_error(local, two_loaders, monkeypatch, capfd):
    def wrong(path):
        return {name: tensor + 1 for name, tensor in loads.libraries.load_safetensors(path).items()}

    monkeypatch.setitem(loads.LOADERS, "safetensors", ("safetensors", wrong))
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
