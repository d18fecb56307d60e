# SPDX-License-Identifier: Apache-2.0
"""What programs assume of a filesystem when the power fails: a program saves a state over an older one; its system calls
are repeated in a store, and cut everywhere (harness/trace.py). Whatever is left must be the old state or the new one,
and the new one if the program had made it durable. The method is ALICE's: Pillai et al., "All File Systems Are Not
Created Equal", OSDI 2014."""

import os
import sqlite3
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from application_steps import BETWEEN
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
    """Each file is the old or the new one."""
    import numpy
    arrays = [numpy.fromfile(folder / "many" / name, "int64") for name in ("a", "b")]
    assert [array.shape for array in arrays] == [(3000,), (10,)] and all((array == array[0]).all() for array in arrays)
    return {int(array[0]) for array in arrays}


def load_dcp(folder):
    """The latest checkpoint that has `.metadata`."""
    import torch
    from torch.distributed import checkpoint
    latest = max(folder.glob("step*/.metadata")).parent
    state = {"a": torch.zeros(3000, dtype=torch.int64), "step": 0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        checkpoint.load(state, storage_reader=checkpoint.FileSystemReader(latest))
    return {*state["a"].tolist(), state["step"]}


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
        "weightfs_hdf5": (load_hdf5, True), "weightfs_manager": (load_manager, True),
        "weightfs_save_many": (load_many, True), "dcp_steps": (load_dcp, False), "weightfs_dcp": (load_dcp, True)}
# Ways that rename several files, one after the other: a crash leaves each old or new (docs/DIRECT.md).
ONE_BY_ONE = {"weightfs_save_many"}


def recorded(way, folder):
    folder.mkdir()
    calls = trace.record([sys.executable, STEPS, way], folder)
    between = calls.index({"call": "mkdir", "path": BETWEEN})
    first, second = calls[:between], calls[between + 1:]
    assert first and second
    return [*first, {"call": "start"}, *second]


@pytest.mark.parametrize("way", [pytest.param(way, marks=[pytest.mark.full] if way == "git" else []) for way in WAYS])
def test_a_crash_leaves_the_old_state_or_the_new_one(way, local, request):
    load, durable = WAYS[way]
    # On a local disk, save_many syncs the filesystem, which is another call than on a mount.
    where = request.getfixturevalue("work") if way in ONE_BY_ONE else local
    allowed = {frozenset([1]), frozenset([2])} | ({frozenset([1, 2])} if way in ONE_BY_ONE else set())
    left, seen = trace.states(recorded(way, where / "work"), local), set()
    for folder, ended in left:
        found = load(folder)
        assert found in allowed, (folder, found)
        assert found == {2} or not (ended and durable), folder
        seen.add(frozenset(found))
    assert seen == allowed
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
