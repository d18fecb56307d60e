#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains one transformer three ways, with its weights, gradients and optimizer states in memory, offloaded by
weightfs.offload, and offloaded by DeepSpeed's own swapper (ZeRO-3 with NVMe offload) whose I/O weightfs does. Compares
their speed. Needs deepspeed 0.15 or newer (docs/OFFLOAD.md)."""

import contextlib
import importlib.util
import json
import os
import statistics
import sys

import torch

import weightfs.deepnvme
import weightfs.offload
from offload_model import Bar, Folder, loss_of, made, parser, seconds, size_of, train_step

NEEDED = "this example needs deepspeed: DS_BUILD_OPS=0 python -m pip install deepspeed"


def plain_step(model, optimizer):
    return lambda number, args: train_step(model, optimizer, number, args)


def deepspeed_step(engine):
    def step(number, args):
        loss = loss_of(engine, number, args)
        engine.backward(loss)
        engine.step()
        return loss.item()
    return step


def deepspeed_engine(args, directory):
    """The model in DeepSpeed: every weight, gradient and state is on the device between its uses."""
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    import deepspeed
    # Otherwise DeepSpeed compiles its operator for several processes, which takes minutes.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed("gloo")
    model = made(args)
    largest = max(parameter.numel() for parameter in model.parameters())
    place = {"device": "nvme", "nvme_path": directory, "pin_memory": False}
    settings = {"stage": 3, "offload_param": place | {"buffer_count": 8, "buffer_size": largest + 4096},
                "offload_optimizer": place | {"buffer_count": 4}, "stage3_param_persistence_threshold": 0,
                "stage3_max_live_parameters": 0, "stage3_prefetch_bucket_size": largest}
    aio = {"block_size": 1 << 20, "queue_depth": 32, "single_submit": False, "overlap_events": True,
           "intra_op_parallelism": 2}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config={
        "train_micro_batch_size_per_gpu": args.batch, "zero_optimization": settings, "aio": aio,
        "zero_force_ds_cpu_optimizer": False, "zero_allow_untested_optimizer": True})
    return engine


def compare(args, folder, bar):
    """Trains all three, step by step. Returns the measurements."""
    plain = made(args)
    ours = weightfs.offload.offload(made(args), os.path.join(folder, "offload"), args.memory)
    swapped = os.path.join(folder, "deepspeed")
    os.mkdir(swapped)
    ways = {"in memory": plain_step(plain, torch.optim.AdamW(plain.parameters(), lr=1e-3, foreach=False)),
            "weightfs.offload": plain_step(ours, weightfs.offload.AdamW(ours, lr=1e-3)),
            "DeepSpeed's swapper": deepspeed_step(deepspeed_engine(args, swapped))}
    times, losses = {way: [] for way in ways}, {way: [] for way in ways}
    for number in range(args.steps + 1):   # the first step learns the order
        for way, step in ways.items():
            loss, took = seconds(lambda: step(number, args))
            losses[way].append(loss)
            if number:
                times[way].append(took)
        bar.advance(f"step {number + 1}: loss {losses['in memory'][-1]:.4f}")
    found = {"state_bytes": size_of(plain) * 4, "memory": args.memory, "seconds": times, "losses": losses}
    weightfs.offload.close(ours)
    return found


def report(found):
    print(f"{found['state_bytes'] / 1e6:.0f} MB of weights, gradients and states; weightfs.offload has "
          f"{found['memory']} of memory for them")
    plain = found["seconds"]["in memory"]
    for way, took in found["seconds"].items():
        ratio = statistics.median(one / other for one, other in zip(plain, took))
        print(f"{way:20} {1 / statistics.median(took):.3f} steps/s, {ratio:.2f} of in memory")


def differences(found):
    """The ways whose losses are not those in memory. DeepSpeed sums in another order."""
    expected = found["losses"]["in memory"]
    return [way for way, losses in found["losses"].items()
            if any(abs(one - other) > 1e-3 * abs(one) for one, other in zip(expected, losses))]


def main():
    options = parser(__doc__, 8, 384)
    options.add_argument("--memory", default="32M", help="memory of weightfs.offload")
    options.add_argument("--steps", type=int, default=4, help="measured training steps, at least 1")
    options.add_argument("--batch", type=int, default=4, help="sequences of 64 tokens")
    args = options.parse_args()
    if args.steps < 1:
        options.error(f"--steps is {args.steps}: it must be at least 1")
    if importlib.util.find_spec("deepspeed") is None:
        options.error(NEEDED)
    with Folder(args.folder) as folder, contextlib.redirect_stdout(sys.stderr):   # DeepSpeed prints its warnings
        weightfs.deepnvme.install()
        found = compare(args, folder, Bar(args.steps + 1))
    print(json.dumps(found, indent=1)) if args.json else report(found)
    wrong = differences(found)
    for way in wrong:
        print(f"THE LOSSES OF {way} DIFFER", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
