# SPDX-License-Identifier: Apache-2.0
"""Saves of weightfs.dcp that overlap in one directory: each one that reports success has left a checkpoint that can be
loaded, that of the last one to finish."""

import os
import random
import signal
import traceback

import pytest
import torch

from harness import needs

weightfs = pytest.importorskip("weightfs", reason="the Python package is not installed: pip install . in the root")
pytest.importorskip("weightfs._native", reason="another weightfs is imported: pip install . in the root")
dcp = pytest.importorskip("torch.distributed.checkpoint", reason="this torch is built without distributed")

from weightfs import dcp as ours  # noqa: E402

pytestmark = [needs.torch("2.7"), pytest.mark.limit(600)]
ROUNDS = 30
STOPS = ("open", "replace", "rename", "listdir", "unlink", "stat")   # functions of os, before which a save stops


def state(seed):
    return {"a": torch.full((300, 1000), float(seed)), "step": seed}


def save(path, seed):
    dcp.save(state(seed), storage_writer=ours.StorageWriter(path), no_dist=True)


def loaded(path):
    """The seed of the checkpoint that is there."""
    found = {"a": torch.zeros(300, 1000), "step": None}
    dcp.load(found, storage_reader=ours.StorageReader(path), no_dist=True)
    assert torch.equal(found["a"], state(found["step"])["a"])
    return found["step"]


class Stepped:
    """A save in a process that stops before each call that concerns files of the directory."""

    def __init__(self, path, seed):
        self.seed, self.placed, self.at = seed, False, None
        stop_read, stop_write = os.pipe()
        go_read, go_write = os.pipe()
        self._child = os.fork()
        if self._child == 0:
            os.close(stop_read)
            os.close(go_write)
            self._run(path, stop_write, go_read)
        os.close(stop_write)
        os.close(go_read)
        self._stops, self._go = os.fdopen(stop_read, "r"), go_write
        self._wait()

    def _run(self, path, stops, go):
        code = 1
        try:
            def stopping(name, call):
                def stop(*arguments, **options):
                    if arguments and str(path) in str(arguments[0]):
                        os.write(stops, f"{name} {arguments[-1]}\n".encode())
                        os.read(go, 1)
                    return call(*arguments, **options)
                return stop

            for name in STOPS:
                setattr(os, name, stopping(name, getattr(os, name)))
            save(path, self.seed)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)

    def _wait(self):
        """Waits until it stops or ends."""
        line = self._stops.readline()
        self.placed = self.placed or (self.at or "").startswith("replace ") and self.at.endswith("/.metadata")
        self.at = line.strip() or None

    def step(self):
        os.write(self._go, b"x")
        self._wait()

    def kill(self):
        os.kill(self._child, signal.SIGKILL)
        return self.end()

    def end(self):
        """Returns whether the save reported success."""
        self._stops.close()
        os.close(self._go)
        return os.waitstatus_to_exitcode(os.waitpid(self._child, 0)[1]) == 0


def data_files(path):
    return sorted(name for name in os.listdir(path) if name != ".metadata")


def run(path, source, kills):
    """Lets two saves run in a random order of their steps, and perhaps kills one. Returns the seeds of those that
    reported success, and the seed of the checkpoint that must be there."""
    saves, last, succeeded = [Stepped(path, 1), Stepped(path, 2)], 0, set()
    kill_at = source.randrange(40) if kills else None
    running = list(saves)
    while running:
        one = source.choice(running)
        for _ in range(source.choice((1, 1, 3, 10))):
            if one.at is None:
                running.remove(one)
                succeeded |= {one.seed} if one.end() else set()
                break
            if kill_at == 0 and len(running) == 2:
                running.remove(one)
                one.kill()
                kill_at = None
                break
            kill_at = None if kill_at is None else max(0, kill_at - 1)
            before = one.placed
            one.step()
            last = one.seed if one.placed and not before else last
    return succeeded, last


@pytest.mark.parametrize("kills", [False, True])
def test_overlapping_saves_leave_the_checkpoint_of_the_last_one(work, kills):
    seed = int(os.environ.get("WEIGHTFS_SEED", "1"))
    print(f"WEIGHTFS_SEED={seed}")
    source = random.Random(seed)
    for number in range(ROUNDS):
        path = work / f"step-{number}"
        save(path, 0)
        (path / "__0_notes.distcp").write_text("of the user")
        succeeded, last = run(path, source, kills)
        assert len(succeeded) == 2 or kills and len(succeeded) >= 1, f"round {number}"
        assert loaded(path) == last, f"round {number}"
        assert last or not succeeded
        save(path, 3)
        names = data_files(path)
        assert loaded(path) == 3 and len(names) == 2 and names[1] == "__0_notes.distcp", f"round {number}: {names}"
