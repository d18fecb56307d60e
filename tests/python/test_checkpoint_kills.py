# SPDX-License-Identifier: Apache-2.0
"""A program is killed while it saves steps, or the mount below it. Afterwards every step is whole, and the newest is at
least the last one that was reported durable.

--rounds N or --full kill at more moments; WEIGHTFS_SEED chooses others."""

import os
import random
import select
import subprocess
import sys
from pathlib import Path

import pytest

from checkpoint_run import same, state
from harness import process
from weightfs import checkpoint

PROGRAM = Path(__file__).with_name("checkpoint_run.py")
NEVER = 1 << 30
SAVES = 4
MOST_DELAY_S = 0.15
LIMIT_S = 300   # of one program
pytestmark = pytest.mark.limit(3000)


@pytest.fixture
def rounds(request):
    given = request.config.getoption("rounds")
    return max(4, given or (60 if request.config.getoption("full") else 8))


def start(folder, kind, first=1, saves=SAVES, kill_at=NEVER):
    words = [sys.executable, PROGRAM, folder, first, kind, saves, kill_at]
    return subprocess.Popen(list(map(str, words)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def numbers(output, word):
    return [int(line.split()[1]) for line in output.splitlines() if line.startswith(word + " ")]


def check(folder, kind, output):
    """Returns the number of the newest whole state."""
    begun, durable = max(numbers(output, "begin"), default=0), max(numbers(output, "durable"), default=0)
    with checkpoint.Manager(folder) as manager:
        found = [name for name in os.listdir(folder) if name.startswith(".")]
        assert not found, "a manager removes what a killed program left"
        for step in manager.steps():
            loaded = manager.load(step)
            assert same(loaded, state(loaded["step"], scale=4))
            assert step == (1 if kind == "replace" else loaded["step"])
        newest = manager.load()["step"] if manager.steps() else 0
    assert durable <= newest <= begun
    return newest


@pytest.mark.parametrize("kind", ["new", "replace"])
def test_a_kill_between_any_two_calls_leaves_whole_steps(folder, kind, rounds):
    whole = process.finish(start(folder, kind), limit=LIMIT_S)
    calls, newest = numbers(whole.out, "calls")[0], check(folder, kind, whole.out)
    assert newest == SAVES and calls > 30
    outcomes, kills = set(), rounds // 2

    def kill(kill_at, before):
        # A save that waits makes more calls, so one that waits less may end before its call of that number.
        killed = process.finish(start(folder, kind, before + 1, 2, kill_at), limit=LIMIT_S, codes=(-9, 0))
        found = check(folder, kind, killed.out)
        outcomes.add(found - before)
        return found

    for index in range(kills):
        kill_at = 1 + index * (calls - 1) // (kills - 1)
        newest = kill(kill_at, newest)
    while 2 not in outcomes:   # these saves had to wait more than the first
        calls += calls // 4
        newest = kill(calls, newest)
    assert outcomes == {1, 2}, "some kills came before the last rename, and some after it"


def kill_after(program, kill, random_delay):
    """Lets the program begin a save, and calls kill() a moment later. Returns its output."""
    output = ""
    while not numbers(output, "begin"):
        output += program.stdout.readline()
    select.select([], [], [], random_delay)   # any moment is right
    kill()
    finished = process.finish(program, limit=LIMIT_S, codes=None)
    assert finished.code != 0
    return output + finished.out


@pytest.fixture
def delays():
    seed = os.environ.get("WEIGHTFS_SEED", "1")
    print(f"WEIGHTFS_SEED={seed}")
    source = random.Random(seed)
    return lambda: source.uniform(0, MOST_DELAY_S)


@pytest.mark.parametrize("kind", ["new", "replace"])
def test_a_kill_at_any_moment_leaves_whole_steps(work, kind, rounds, delays):
    newest = 0
    for _ in range(rounds // 2):
        program = start(work, kind, newest + 1, saves=100)
        newest = check(work, kind, kill_after(program, program.kill, delays()))


def test_a_kill_of_the_mount_leaves_whole_steps(factory, weightfs_only, rounds, delays):
    mount, newest = factory.mount(factory.store("256M"), "commit=3600"), 0
    for index in range(rounds):
        kind = ("new", "replace")[index % 2]
        folder = mount.path / kind
        output = kill_after(start(folder, kind, newest + 1, saves=100), mount.kill9, delays())
        mount.mount()
        newest = max(newest, check(folder, kind, output))
    mount.fsck()
