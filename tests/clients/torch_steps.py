# SPDX-License-Identifier: Apache-2.0
"""Steps that test_torch.py runs in separate processes: torch maps files, and accessing a mapping of a dead mount kills
the process."""

import sys

import torch


def state(seed=11):
    torch.manual_seed(seed)
    return {"weight": torch.randn(513, 1024), "bias": torch.randn(17), "half": torch.randn(300, 7).to(torch.bfloat16),
            "steps": torch.arange(100_000), "scalar": torch.tensor(3.5), "empty": torch.empty(0, 4)}


def equal(left, right):
    return left.keys() == right.keys() and all(
        left[name].dtype == right[name].dtype and torch.equal(left[name], right[name]) for name in left)


def save(path):
    torch.save(state(), path)


def load_mapped(path):
    assert equal(torch.load(path, mmap=True, weights_only=True), state())


if __name__ == "__main__":
    {"save": save, "load_mapped": load_mapped}[sys.argv[1]](sys.argv[2])
