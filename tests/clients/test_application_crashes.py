# SPDX-License-Identifier: Apache-2.0
"""What programs assume of a filesystem when the power fails: a program saves a state over an older one; its system calls
are repeated in a store, and cut everywhere (harness/trace.py). Whatever is left must be the old state or the new one,
and the new one if the program had made it durable. The method is ALICE's: Pillai et al., "All File Systems Are Not
Created Equal", OSDI 2014."""

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from harness import needs, trace

pytestmark = needs.program("strace")
STEPS = Path(__file__).with_name("application_steps.py")


def load_torch(folder):
    import torch
    return set(torch.load(folder / "model.pt")["a"].tolist())


def load_safetensors(folder):
    from safetensors.torch import load_file
    return set(load_file(folder / "model.safetensors")["a"].tolist())


def load_numpy(folder):
    import numpy
    return set(numpy.load(folder / "array.npy").tolist())


def load_hdf5(folder):
    import h5py
    with h5py.File(folder / "data.h5") as file:
        return set(file["a"][:].tolist())


def load_sqlite(folder):
    connection = sqlite3.connect(folder / "data.db")
    assert connection.execute("pragma integrity_check").fetchall() == [("ok",)]
    rows = connection.execute("select b from a").fetchall()
    connection.close()
    assert len(rows) == 2000
    return {row[0] for row in rows}


def load_git(folder):
    def run(*words):
        return subprocess.run(["git", "-c", "safe.directory=*", *words], cwd=folder, check=True, capture_output=True,
                              text=True).stdout
    run("fsck", "--strict")
    for lock in folder.rglob("*.lock"):
        lock.unlink()   # git says so
    return set(map(int, run("show", "HEAD:file").split()))


def load_hub(folder):
    version = int((folder / "refs/main").read_text())
    content = (folder / f"snapshots/{version}/model").read_bytes()
    assert content == bytes([version]) * 20000
    for link in folder.glob("snapshots/*/model"):
        assert link.stat().st_size == 20000
    return {version}


def load_many(folder):
    import weightfs
    tensors = weightfs.Handle(direct="never").load_many(folder / "many")
    return {value for tensor in tensors.values() for value in tensor.tolist()}


def load_manager(folder):
    import weightfs.checkpoint
    with weightfs.checkpoint.Manager(folder / "checkpoints") as manager:
        for step in manager.steps():
            assert set(manager.load(step)["a"].tolist()) == {step}
        return {manager.latest()}


# Each way, how its result is loaded, and whether it is durable when it returns.
WAYS = {"torch_save": (load_torch, False), "safetensors": (load_safetensors, False),
        "numpy_save": (load_numpy, False), "h5py_file": (load_hdf5, False), "sqlite": (load_sqlite, True),
        "sqlite_wal": (load_sqlite, True), "git": (load_git, False), "hub_cache": (load_hub, False),
        "weightfs_torch": (load_torch, True), "weightfs_safetensors": (load_safetensors, True),
        "weightfs_manager": (load_manager, True)}


def recorded(way, folder):
    folder.mkdir()
    first = trace.record([sys.executable, STEPS, way, "1"], folder)
    second = trace.record([sys.executable, STEPS, way, "2"], folder)
    assert first and second
    return [*first, {"call": "start"}, *second]


@pytest.mark.parametrize("way", [pytest.param(way, marks=[pytest.mark.full] if way == "git" else []) for way in WAYS])
def test_a_crash_leaves_the_old_state_or_the_new_one(way, local):
    load, durable = WAYS[way]
    seen = set()
    left = trace.states(recorded(way, local / "work"), local)
    for folder, ended in left:
        found = load(folder)
        assert found in ({1}, {2}), (folder, found)
        assert found == {2} or not (ended and durable), folder
        seen |= found
    assert seen == {1, 2}
    assert len(left) > 1


def test_a_broken_assumption_is_noticed(local):
    """A program that overwrites in place, without a sync between its two files."""
    calls = [{"call": "open", "path": name, "creates": True, "truncates": False, "writes": True} for name in "ab"]
    calls += [{"call": "write", "path": name, "data": "31", "at": 0} for name in "ab"] + [{"call": "start"}]
    calls += [{"call": "write", "path": name, "data": "32", "at": 0} for name in "ab"]
    found = {((folder / "a").read_text(), (folder / "b").read_text()) for folder, _ in trace.states(calls, local)}
    assert ("2", "1") in found and {("1", "1"), ("2", "2")} <= found


def test_a_recorded_program_leaves_what_it_has_left(local):
    folder = local / "work"
    folder.mkdir()
    code = ("import os\nos.mkdir('d')\nf = open('d/x', 'wb')\nf.write(b'one')\nf.seek(1)\nf.write(b'two')\nf.close()\n"
            "f = open('d/x', 'ab')\nf.write(b'end')\nf.close()\nos.rename('d', 'e')\nos.symlink('e/x', 'l')\n"
            "os.link('e/x', 'y')\nos.unlink('y')\n")
    calls = trace.record([sys.executable, "-c", code], folder)
    assert (folder / "e/x").read_bytes() == b"otwoend"
    left = [state for state, ended in trace.states([{"call": "start"}, *calls], local) if ended]
    same = [state for state in left if sorted(os.listdir(state)) == sorted(os.listdir(folder)) == ["e", "l"]]
    assert any((state / "e/x").read_bytes() == b"otwoend" and os.readlink(state / "l") == "e/x" for state in same)
