# SPDX-License-Identifier: Apache-2.0
"""weightfs-checkpoint: measures how long a training loop stands still for a checkpoint, and how long it takes until the
checkpoint is durable, for each way to save one.

Rounds of all ways and directories alternate. The table has medians, and the medians of the ratios of each round to
torch.save in the last directory (with --compare, in that one)."""

import argparse
import dataclasses
import json
import os
import statistics
import sys
import tempfile
import time
import warnings

from weightfs.tools._torch import torch

import torch.distributed.checkpoint as dcp

import weightfs.dcp
from weightfs import checkpoint
from weightfs._numbers import parse_size
from weightfs._replace import sync_folder
from weightfs.tools._program import Bar, Parser, Stop, run

_TENSOR = 16 << 20   # bytes of the largest tensors


class TorchSave:
    name = "torch.save, fsync"

    def __init__(self, folder):
        self._folder = folder

    def save(self, step, state):
        """Saves a state. Returns a function that waits until it is durable."""
        with open(os.path.join(self._folder, f"{step}.pt"), "wb") as stream:
            torch.save(state, stream)
            stream.flush()
            os.fsync(stream.fileno())
        sync_folder(self._folder)
        return lambda: None

    def close(self):
        pass


class Dcp(TorchSave):
    name, writer, asynchronous = "dcp FileSystemWriter", dcp.FileSystemWriter, False

    def save(self, step, state):
        writer = self.writer(os.path.join(self._folder, str(step)))
        if self.asynchronous:
            return dcp.async_save(state, storage_writer=writer, no_dist=True).result
        dcp.save(state, storage_writer=writer, no_dist=True)
        return lambda: None


class AsyncDcp(Dcp):
    name, asynchronous = "dcp FileSystemWriter, async", True


class OurDcp(Dcp):
    name, writer = "weightfs.dcp", weightfs.dcp.StorageWriter


class OurAsyncDcp(OurDcp):
    name, asynchronous = "weightfs.dcp, async", True


class Managed:
    name = "weightfs Manager"

    def __init__(self, folder):
        self._manager = checkpoint.Manager(folder, keep=1)

    def save(self, step, state):
        return self._manager.save(step, state).result

    def close(self):
        self._manager.close()


WAYS = (TorchSave, Dcp, AsyncDcp, Managed, OurDcp, OurAsyncDcp)


@dataclasses.dataclass
class Row:
    """The seconds of each round."""

    way: str
    directory: str
    stall_s: list = dataclasses.field(default_factory=list)
    durable_s: list = dataclasses.field(default_factory=list)

    def times_faster(self, base):
        """Medians of base's seconds over these: (stall, durable)."""
        return tuple(statistics.median(theirs / ours for ours, theirs in zip(getattr(self, field), getattr(base, field)))
                     for field in ("stall_s", "durable_s"))


def state_of(size):
    tensors, left = {}, size
    while left >= 4:
        nbytes = min(left, _TENSOR)
        tensors[f"layer.{len(tensors)}.weight"] = torch.randn(nbytes // 4)
        left -= nbytes
    return tensors


def measure(directories, size, rounds):
    """Yields the rows after each round. The first round, which allocates memory, is not counted."""
    state = state_of(size)
    rows = [Row(way.name, directory) for directory in directories for way in WAYS]
    bar = Bar("weightfs-checkpoint", (rounds + 1) * len(rows))
    for number in range(rounds + 1):
        for row, way in zip(rows, WAYS * len(directories)):
            bar.show(f"{row.way} in {row.directory}")
            stall_s, durable_s = _time(way, row.directory, state)
            if number:
                row.stall_s.append(stall_s)
                row.durable_s.append(durable_s)
            bar.advance()
        if number:
            yield rows
    bar.end()


def _time(way, directory, state):
    with tempfile.TemporaryDirectory(prefix="weightfs-checkpoint-", dir=directory) as folder:
        used = way(folder)
        try:
            used.save(0, state)()   # a training run reuses what the first save allocates
            begin = time.perf_counter()
            wait = used.save(1, state)
            stall_s = time.perf_counter() - begin
            wait()
            return stall_s, time.perf_counter() - begin
        finally:
            used.close()


def report(rows, size, as_json):
    """Prints the table, or JSON."""
    base = [row for row in rows if row.way == TorchSave.name][-1]
    if as_json:
        content = [dataclasses.asdict(row) | dict(zip(("stall_times_faster", "durable_times_faster"),
                                                      row.times_faster(base))) for row in rows]
        print(json.dumps({"size": size, "base": base.directory, "rows": content}, indent=1))
        return
    print(f"{size / (1 << 20):.0f} MiB, medians of {len(base.stall_s)} rounds; ratios: times as fast as {base.way} in "
          f"{base.directory}")
    for directory in dict.fromkeys(row.directory for row in rows):
        print(f"\n{directory:30}  loop stands still       until durable")
        for row in (row for row in rows if row.directory == directory):
            stall, durable = row.times_faster(base)
            print(f"{row.way:30} {statistics.median(row.stall_s):8.3f} s {stall:6.2f}x     "
                  f"{statistics.median(row.durable_s):8.3f} s {durable:6.2f}x")


def parse(arguments):
    parser = Parser(prog="weightfs-checkpoint", description=__doc__,
                    formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", metavar="DIR", help="a mount or any directory; what is written is removed again")
    parser.add_argument("--compare", metavar="DIR", help="a directory on another filesystem")
    parser.add_argument("--size", default="256M", help="bytes of the state: a number with K, M or G (default 256M)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds that are counted (default 5)")
    parser.add_argument("--json", action="store_true", help="print JSON with the seconds of each round")
    args = parser.parse_args(arguments)
    args.directories = [args.directory] + ([args.compare] if args.compare else [])
    for directory in args.directories:
        if not os.path.isdir(directory):
            parser.error(f"{directory}: no such directory")
    if args.rounds < 1:
        parser.error("--rounds begins at 1")
    try:
        args.size = parse_size(args.size)
    except ValueError as error:
        parser.error(str(error))
    return args


def main(arguments=None):
    return run("weightfs-checkpoint", lambda: _main(arguments))


def _main(arguments):
    args, rows = parse(arguments), None
    warnings.filterwarnings("ignore", module=r"torch\.distributed\..*")   # that there is one process
    try:
        for rows in measure(args.directories, args.size, args.rounds):
            pass
    except Stop:
        if rows is not None:
            report(rows, args.size, args.json)
        raise
    except (OSError, RuntimeError, dcp.api.CheckpointException) as error:
        print(f"weightfs-checkpoint: {error}", file=sys.stderr)
        return 1
    report(rows, args.size, args.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
