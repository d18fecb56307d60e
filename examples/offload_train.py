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
from weightfs.bench import compare
from offload_model import Bar, Folder, made, parser, seconds, size_of, train_step


def offloaded(args, directory):
    model = weightfs.offload.offload(made(args), directory, args.memory, resume=True, durable=args.durable)
    return model, weightfs.offload.AdamW(model, lr=1e-3)


def train_both(args, directory, bar):
    """Trains both, step by step. Returns (the measurements, the weights of plain training)."""
    plain = made(args)
    theirs = torch.optim.AdamW(plain.parameters(), lr=1e-3, foreach=False)
    model, ours = offloaded(args, directory)
    times, same = ([], []), True
    for number in range(args.steps):
        expected, plain_s = seconds(lambda: train_step(plain, theirs, number, args))
        loss, offloaded_s = seconds(lambda: train_step(model, ours, number, args))
        same = same and loss == expected
        if number:   # the first step learns the order
            times[0].append(plain_s)
            times[1].append(offloaded_s)
        else:
            model.offload_stats.reset()
        bar.advance(f"step {number + 1}: loss {loss:.4f}")
    stats = model.offload_stats
    found = {"state_bytes": size_of(plain) * 4, "memory": args.memory, "seconds": {"in memory": times[0],
             "offloaded": times[1]}, "read_bytes_per_step": stats.bytes_read / (args.steps - 1),
             "written_bytes_per_step": stats.bytes_written / (args.steps - 1),
             "share_waited": stats.waited_s / sum(times[1]), "same_losses": same}
    weightfs.offload.close(model)
    return found, dict(plain.state_dict())


def result_of(found, folder):
    rates = {name: [1 / each for each in seconds] for name, seconds in found["seconds"].items()}
    note = (f"{found['state_bytes'] / 1e6:.0f} MB of weights, gradients and states in {found['memory']} of memory; per "
            f"step {found['read_bytes_per_step'] / 1e6:.0f} MB are read and "
            f"{found['written_bytes_per_step'] / 1e6:.0f} MB written. The offloaded run waited "
            f"{found['share_waited']:.0%} of its time for I/O. The killed run continued from {found['complete_steps']} "
            f"complete steps.")
    equal = {"all losses": found["same_losses"],
             "the weights of the run that was killed and resumed": found["same_weights_after_kill"]}
    return compare.result("offload_train.py", folder, found["state_bytes"], len(rates["in memory"]), [
        compare.row("train", "steps/s", rates, "in memory", title="steps/s")], ["train"], notes=[
            note, *(f"Equal to the run in memory: {what}." for what, same in equal.items() if same)],
        alarms=[f"WRONG RESULT: these differ from the run in memory: {what}" for what, same in equal.items()
                if not same])


def report(found):
    print(f"{found['state_bytes'] / 1e6:.0f} MB of weights, gradients and states, {found['memory']} of memory; per "
          f"step {found['read_bytes_per_step'] / 1e6:.0f} MB read and {found['written_bytes_per_step'] / 1e6:.0f} MB "
          f"written")
    plain, offloaded_s = found["seconds"].values()
    print(f"plain      {1 / statistics.median(plain):.3f} steps/s")
    ratio = statistics.median(one / other for one, other in zip(plain, offloaded_s))
    print(f"offloaded  {1 / statistics.median(offloaded_s):.3f} steps/s, {ratio:.2f} of plain; waited for the device: "
          f"{found['share_waited']:.0%} of the time")
    print(f"the program was killed (status {found['kill_status']}); its directory has {found['complete_steps']} "
          f"complete steps")
    if found["same_losses"]:
        print("every loss equals that of plain training")
    if found["same_weights_after_kill"]:
        print("the killed run ended with the weights of plain training")


def kill_and_resume(args, directory, expected, bar):
    """Trains in a program that is killed in the middle of its last step, and goes on. Returns its exit
    status, the complete steps that it left, and whether the weights are those of plain training."""
    words = [sys.executable, __file__, args.folder, "--child", directory]
    for name in ("layers", "width", "memory", "steps", "batch"):
        words += [f"--{name}", str(getattr(args, name))]
    status = subprocess.run(words, check=False).returncode
    bar.advance("killed in the middle of a step")
    model, optimizer = offloaded(args, directory)
    complete = optimizer.steps
    killed = status == -signal.SIGKILL and 0 < complete < args.steps
    for number in range(complete, args.steps):
        train_step(model, optimizer, number, args)
    bar.advance("continued")
    same = all(torch.equal(tensor, expected[name]) for name, tensor in weightfs.offload.tensors(model))
    weightfs.offload.close(model)
    return {"kill_status": status, "complete_steps": complete, "same_weights_after_kill": killed and same}


def train_and_die(args):
    model, optimizer = offloaded(args, args.child)
    for number in range(args.steps - 1):
        train_step(model, optimizer, number, args)
    before = model.offload_stats.bytes_written
    advance = optimizer._update

    def deadly(*arguments):
        advance(*arguments)
        if model.offload_stats.bytes_written > before + size_of(model):
            os.kill(os.getpid(), signal.SIGKILL)

    optimizer._update = deadly
    train_step(model, optimizer, args.steps - 1, args)


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
        found, expected = train_both(args, os.path.join(folder, "model"), bar)
        found |= kill_and_resume(args, os.path.join(folder, "killed"), expected, bar)
    compare.output(result_of(found, args.folder), True) if args.json else report(found)
    wrong = [text for name, text in (("same_losses", "THE LOSSES DIFFER"),
                                     ("same_weights_after_kill", "THE KILLED RUN DIFFERS")) if not found[name]]
    print("".join(f"{text}\n" for text in wrong), end="", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
