# SPDX-License-Identifier: Apache-2.0
"""States of a training run, and the program of test_checkpoint_kills.py that is killed while it saves them."""

import os
import signal
import sys
import threading

import torch

from weightfs import checkpoint


def state(step, scale=1):
    """Everything that a state may have; the same for the same step."""
    generator = torch.Generator().manual_seed(step)
    weights = torch.randn(300 * scale, 1000, generator=generator)
    return {"step": step, "weights": weights, "view": weights[5:], "transposed": weights.t(), "name": "ünïcödé",
            "half": torch.randn(70_001, generator=generator).bfloat16(), "empty": torch.empty(0, 3),
            "scalar": torch.tensor(2.5), "flags": [True, None, (1, torch.arange(step + 1))],
            "optimizer": {"lr": 0.1, "state": {i: {"m": torch.randn(20, 30, generator=generator)} for i in range(9)}}}


def same(a, b):
    """Whether two states are equal, bit for bit."""
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.stride() == b.stride() and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return a == b


def die_at(number):
    """Kills this process at the call of that number that a save's thread makes to a function of the interpreter or the
    operating system. Returns a function that gives the number of calls so far."""
    calls = [0]

    def count(_frame, event, _function):
        if event == "c_call":
            calls[0] += 1
            if calls[0] == number:
                os.kill(os.getpid(), signal.SIGKILL)

    threading.setprofile(count)
    return lambda: calls[0]


def main(directory, first, replace, saves, kill_at):
    """Saves states until it is killed: each as a step of its own, or all as one step. Prints each number when its save
    begins, and again when it is durable. kill_at: see die_at, in the last of the saves."""
    first, last = int(first), int(first) + int(saves) - 1
    with checkpoint.Manager(directory, keep=2) as manager:
        for number in range(first, last + 1):
            print("begin", number, flush=True)
            calls = die_at(int(kill_at)) if number == last else None
            manager.save(1 if replace == "replace" else number, state(number, scale=4), wait=True)
            print("durable", number, flush=True)
    print("calls", calls(), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
