# SPDX-License-Identifier: Apache-2.0
"""weightfs-checkpoint: measures how long a training loop stands still for a checkpoint, and how long it takes until the
checkpoint is durable, for each way to save one.

Rounds of all ways and directories alternate. The table has medians, and the medians of the ratios of each round to
torch.save in the last directory (with --compare, in that one)."""

import os
import sys
import tempfile
import time
import warnings

from weightfs.tools._torch import torch

import torch.distributed.checkpoint as dcp

import weightfs.dcp
from weightfs import checkpoint
from weightfs._core.files import sync_folder
from weightfs.bench import compare
from weightfs.bench.program import directory

_TENSOR = 16 << 20   # bytes of the largest tensors


# The ways: each returns a function that waits until the state is durable, and one that releases what it uses.

def torch_save(folder):
    def save(step, state):
        with open(os.path.join(folder, f"{step}.pt"), "wb") as stream:
            torch.save(state, stream)
            stream.flush()
            os.fsync(stream.fileno())
        sync_folder(folder)
        return lambda: None
    return save, lambda: None


def with_dcp(writer, asynchronous=False):
    def way(folder):
        def save(step, state):
            storage = writer(os.path.join(folder, str(step)))
            if asynchronous:
                return dcp.async_save(state, storage_writer=storage, no_dist=True).result
            dcp.save(state, storage_writer=storage, no_dist=True)
            return lambda: None
        return save, lambda: None
    return way


def managed(folder):
    manager = checkpoint.Manager(folder, keep=1)
    return lambda step, state: manager.save(step, state).result, manager.close


BASE = "torch.save, fsync"
WAYS = {BASE: torch_save, "dcp FileSystemWriter": with_dcp(dcp.FileSystemWriter),
        "dcp FileSystemWriter, async": with_dcp(dcp.FileSystemWriter, True), "weightfs Manager": managed,
        "weightfs.dcp": with_dcp(weightfs.dcp.StorageWriter),
        "weightfs.dcp, async": with_dcp(weightfs.dcp.StorageWriter, True)}


def state_of(nbytes):
    sizes = [_TENSOR] * (nbytes // _TENSOR) + [nbytes % _TENSOR] * (nbytes % _TENSOR >= 4)
    return {f"layer.{number}.weight": torch.randn(each // 4) for number, each in enumerate(sizes)}


def seconds_of(way, folder, state):
    """Until the loop goes on, and until the checkpoint is durable."""
    with tempfile.TemporaryDirectory(prefix="weightfs-checkpoint-", dir=folder) as own:
        save, close = WAYS[way](own)
        try:
            save(0, state)()   # a training run reuses what the first save allocates
            begin = time.perf_counter()
            wait = save(1, state)
            stall = time.perf_counter() - begin
            wait()
            return stall, time.perf_counter() - begin
        finally:
            close()


def result_of(values, args):
    def name(way, folder):
        return f"{way}, {'compared' if folder == args.compare else 'here'}" if args.compare else way

    base = name(BASE, args.compare or args.directory)
    rows = [compare.row(title, "s", {name(*key): [pair[index] for pair in each] for key, each in values.items()}, base,
                        table=f"seconds, {args.size / (1 << 20):.0f} MiB")
            for index, title in enumerate(("loop stands still", "until durable"))]
    return compare.result("weightfs-checkpoint", args.directory, args.size, len(next(iter(values.values()))), rows,
                          [row["id"] for row in rows],
                          notes=[f"here: {args.directory}; compared: {args.compare}"] * bool(args.compare))


def main(arguments=None):
    parser = compare.parser("weightfs-checkpoint", __doc__, "bytes of the state", "256M", "rounds that are counted", 5)
    parser.add_argument("--compare", metavar="DIR", type=directory, help="a directory on another filesystem")
    args = parser.parse_args(arguments)

    def work(values, show):
        warnings.filterwarnings("ignore", module=r"torch\.distributed\..*")   # that there is one process
        state = state_of(args.size)
        values |= {(way, folder): [] for folder in (args.directory, args.compare) if folder for way in WAYS}
        compare.measure(values, args.rounds, lambda key: seconds_of(*key, state), show)

    return compare.main("weightfs-checkpoint", args, work, lambda values: result_of(values, args),
                        (dcp.api.CheckpointException,))


if __name__ == "__main__":
    sys.exit(main())
