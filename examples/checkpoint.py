#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A training loop that is killed and resumes from its newest checkpoint.

    examples/checkpoint.py /mnt/tensors/run

starts a training, kills it with SIGKILL, resumes it, and compares the result with a training that nobody interrupted.
Run it again with more --steps: it goes on from where it was."""

import argparse
import os
import signal
import subprocess
import sys
import time

import torch

from weightfs import checkpoint

WIDTH, BATCH = 512, 32


class Training:
    """A small model. The data of a step depends only on its number, so an interrupted training can equal another."""

    def __init__(self):
        torch.manual_seed(0)
        layers = (torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, WIDTH))
        self.model = torch.nn.Sequential(*layers)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.step = 0

    def train_a_step(self):
        self.step += 1
        data = torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(self.step))
        loss = (self.model(data) - data).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def state(self):
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "step": self.step}

    def resume(self, manager):
        """Reads the weights into the model's own memory. The optimizer has no tensors yet, so it gets new ones."""
        state = {"model": self.model.state_dict(), "optimizer": None, "step": None}
        manager.restore(state)
        self.optimizer.load_state_dict(state["optimizer"])
        self.step = state["step"]


def train(directory, steps, every, kill_at=None):
    training = Training()
    with checkpoint.Manager(directory, keep=3) as manager:
        if manager.latest() is not None:
            training.resume(manager)
            print(f"resumed from step {training.step}; saved are {manager.steps()}", flush=True)
        while training.step < steps:
            loss = training.train_a_step()
            if training.step % every == 0 or training.step == steps:
                begin = time.perf_counter()
                manager.save(training.step, training.state())
                stood_ms = (time.perf_counter() - begin) * 1000
                print(f"step {training.step}: loss {loss:.4f}, the loop stood still for {stood_ms:.0f} ms", flush=True)
            if training.step == kill_at:
                print(f"step {training.step}: killed", flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
        manager.wait()
        print(f"finished at step {training.step}; saved are {manager.steps()}", flush=True)
    return training


def equal_parameters(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.model.parameters(), other.model.parameters()))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", help="where the steps are saved: on a mount, or anywhere")
    parser.add_argument("--steps", type=int, default=60, help="steps of the training (default 60)")
    parser.add_argument("--every", type=int, default=10, help="steps from one checkpoint to the next (default 10)")
    parser.add_argument("--kill-at", type=int, default=35, help="kill the training at this step (default 35; 0: never)")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.steps < 1 or args.every < 1:
        parser.error("--steps and --every begin at 1")
    if args.worker:
        train(args.directory, args.steps, args.every, args.kill_at)
        return 0
    if 0 < args.kill_at < args.steps:
        subprocess.run([sys.executable, __file__, args.directory, "--worker", "--steps", str(args.steps), "--every",
                        str(args.every), "--kill-at", str(args.kill_at)], check=False)
    trained, uninterrupted = train(args.directory, args.steps, args.every), Training()
    while uninterrupted.step < trained.step:
        uninterrupted.train_a_step()
    equal = equal_parameters(trained, uninterrupted)
    print(f"the weights {'equal' if equal else 'DIFFER FROM'} those of a training without a kill")
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
