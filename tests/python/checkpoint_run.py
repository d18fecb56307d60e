# SPDX-License-Identifier: Apache-2.0
"""States of a training run, and the program of test_checkpoint_kills.py that is killed while it saves them."""

import sys

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


def main(directory, first):
    """Saves steps until it is killed. Prints each step when its save begins, and again when it is durable."""
    with checkpoint.Manager(directory, keep=3) as manager:
        for step in range(int(first), int(first) + 1000):
            print("begin", step, flush=True)
            manager.save(step, state(step, scale=4), wait=True)
            print("durable", step, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
