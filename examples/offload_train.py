#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a transformer whose weights, gradients and optimizer states are several times larger than the memory for them,
compares each loss with plain training, and continues after the program was killed in the middle of a step."""

import os
import signal
import statistics
import subprocess
import sys

import torch

import weightfs.offload
from offload_model import Bar, Folder, made, parser, seconds, size_of


def step(model, optimizer, number, args):
    """One training step with data that the number determines. Returns the loss."""
    generator = torch.Generator().manual_seed(number)
    tokens = torch.randint(0, 4096, (args.batch, 64), generator=generator)
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    loss.backward()
    optimizer.step()
    return loss.item()


def offloaded(args, directory):
    model = weightfs.offload.offload(made(args), directory, args.memory, resume=True, durable=args.durable)
    return model, weightfs.offload.AdamW(model, lr=1e-3)


def compare(args, directory, bar):
    """Trains both, step by step. Returns (seconds of plain steps, of offloaded ones, whether all losses are equal)."""
    plain = made(args)
    theirs = torch.optim.AdamW(plain.parameters(), lr=1e-3, foreach=False)
    model, ours = offloaded(args, directory)
    times, same = ([], []), True
    for number in range(args.steps):
        expected, plain_s = seconds(lambda: step(plain, theirs, number, args))
        loss, offloaded_s = seconds(lambda: step(model, ours, number, args))
        same = same and loss == expected
        if number:   # the first step learns the order
            times[0].append(plain_s)
            times[1].append(offloaded_s)
        else:
            model.offload_stats.reset()
        bar.advance(f"step {number + 1}: loss {loss:.4f}")
    read, written = model.offload_stats.bytes_read, model.offload_stats.bytes_written
    waited = model.offload_stats.waited_s / sum(times[1])
    print(f"{size_of(plain) * 4 / 1e6:.0f} MB of weights, gradients and states, {args.memory} of memory; per step "
          f"{read / 1e6 / (args.steps - 1):.0f} MB read and {written / 1e6 / (args.steps - 1):.0f} MB written")
    print(f"plain      {1 / statistics.median(times[0]):.3f} steps/s")
    ratio = statistics.median(one / other for one, other in zip(*times))
    print(f"offloaded  {1 / statistics.median(times[1]):.3f} steps/s, {ratio:.2f} of plain; waited for the device: "
          f"{waited:.0%} of the time")
    weightfs.offload.close(model)
    return same, dict(plain.state_dict())


def kill_and_resume(args, directory, expected, bar):
    """Trains in a program that is killed in the middle of its last step, and goes on. Returns whether the weights are
    those of plain training."""
    words = [sys.executable, __file__, args.folder, "--child", directory]
    for name in ("layers", "width", "memory", "steps", "batch"):
        words += [f"--{name}", str(getattr(args, name))]
    status = subprocess.run(words, check=False).returncode
    bar.advance("killed in the middle of a step")
    model, optimizer = offloaded(args, directory)
    print(f"the program was killed (status {status}); its directory has {optimizer.steps} complete steps")
    killed = status == -signal.SIGKILL and 0 < optimizer.steps < args.steps
    for number in range(optimizer.steps, args.steps):
        step(model, optimizer, number, args)
    bar.advance("continued")
    same = all(torch.equal(tensor, expected[name]) for name, tensor in weightfs.offload.tensors(model))
    weightfs.offload.close(model)
    return killed and same


def train_and_die(args):
    model, optimizer = offloaded(args, args.child)
    for number in range(args.steps - 1):
        step(model, optimizer, number, args)
    before = model.offload_stats.bytes_written
    advance = optimizer._update

    def deadly(*arguments):
        advance(*arguments)
        if model.offload_stats.bytes_written > before + size_of(model):
            os.kill(os.getpid(), signal.SIGKILL)

    optimizer._update = deadly
    step(model, optimizer, args.steps - 1, args)


def main():
    options = parser(__doc__, 8, 384)
    options.add_argument("--memory", default="32M", help="memory for weights, gradients and states")
    options.add_argument("--steps", type=int, default=4, help="training steps, at least 2")
    options.add_argument("--batch", type=int, default=4, help="sequences of 64 tokens")
    options.add_argument("--durable", action="store_true", help="each step survives a power loss, not only a kill")
    options.add_argument("--child", help="internal: train in this directory and die")
    args = options.parse_args()
    if args.steps < 2:
        options.error(f"--steps is {args.steps}: it must be at least 2")
    if args.child:
        return train_and_die(args)
    with Folder(args.folder) as folder:
        bar = Bar(args.steps + 2)
        same, expected = compare(args, os.path.join(folder, "model"), bar)
        again = kill_and_resume(args, os.path.join(folder, "killed"), expected, bar)
    print("every loss equals that of plain training" if same else "THE LOSSES DIFFER")
    print("the killed run ended with the weights of plain training" if again else "THE KILLED RUN DIFFERS")
    return 0 if same and again else 1


if __name__ == "__main__":
    sys.exit(main())
