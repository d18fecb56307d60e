# SPDX-License-Identifier: Apache-2.0
"""weightfs-tune: finds the fastest options of a handle for a disk, as DeepSpeed's ds_nvme_tune does.

It prints the best throughput, and JSON that configures a handle: weightfs.aio_handle(**json.load(file)["aio"]). With
--json the throughput goes to standard error. After Ctrl-C or SIGTERM it prints the best so far and exits with 130 or
143."""

import argparse
import dataclasses
import itertools
import json
import os
import sys
from pathlib import Path

from weightfs.tools._torch import torch

from weightfs.bench.program import Parser, Stop, directory, number_from, run, size
from weightfs.tools._measure import NO_GPU, Settings, measure

# The values to try. The names are options of weightfs-io and arguments of Settings.
SWEEP = {"block_size": [1 << 20, 8 << 20], "queue_depth": [32, 128], "sequential_requests": [False, True],
         "single_submit": [False, True], "io_parallel": [1, 2, 4, 8]}


def parse(arguments):
    parser = Parser(prog="weightfs-tune", description=__doc__)
    parser.add_argument("--nvme_dir", type=directory, nargs="+", required=True, help="a directory on each disk to be used together")
    parser.add_argument("--sweep_config", metavar="FILE",
                        help='settings to try, as JSON: {"block_size": ["128K", "1M"], "queue_depth": [32, 128], '
                        '"sequential_requests": [false], "single_submit": [false], "io_parallel": [1, 8]}; omitted '
                        "settings have the defaults of weightfs-io (without the option: 64 combinations)")
    parser.add_argument("--no_read", action="store_true", help="do not measure reads")
    parser.add_argument("--no_write", action="store_true", help="do not measure writes")
    parser.add_argument("--io_size", type=size, default="400M", help="bytes of each file: a number with K, M or G (default 400M)")
    parser.add_argument("--loops", type=number_from(1), default=1, help="repetitions of each measurement (default 1)")
    parser.add_argument("--flush_page_cache", action="store_true",
                        help="drop the kernel's page cache before each measurement (needs root)")
    parser.add_argument("--log_dir", help="directory for the results of all measurements (sweep.json)")
    parser.add_argument("--json", action="store_true", help="print only the JSON")
    parser.add_argument("--verbose", action="store_true", help="print the settings and seconds of each measurement")
    parser.add_argument("--gpu", action="store_true", help="transfer tensors of all GPUs, in turn")
    parser.add_argument("--gds", action="store_true",
                        help="transfer tensors of GPUs with a gds_handle (implies --gpu; its mode: WEIGHTFS_GDS_MODE)")
    return parser, parser.parse_args(arguments)


def read_sweep(path):
    """Reads the sweep from a file. ValueError, with the reason, for an invalid file."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"{path}: it is no JSON: {error}") from error
    if not isinstance(content, dict) or not content:
        raise ValueError(f"{path}: it is no dict of options and lists of values")
    unknown = sorted(set(content) - set(SWEEP))
    if unknown:
        raise ValueError(f"{path}: '{unknown[0]}' is none of {', '.join(SWEEP)}")
    return {name: [_value(path, name, value) for value in _list(path, name, values)]
            for name, values in content.items()}


def _list(path, name, values):
    if not isinstance(values, list) or not values:
        raise ValueError(f"{path}: the values of {name} are no list, or an empty one")
    return values


def _value(path, name, value):
    is_flag = isinstance(SWEEP[name][0], bool)
    if name == "block_size" and isinstance(value, str):
        try:
            return size(value)
        except argparse.ArgumentTypeError as error:
            raise ValueError(f"{path}: block_size: {error}") from error
    if isinstance(value, bool) != is_flag or not isinstance(value, int) or (not is_flag and value < 1):
        wanted = "true or false" if is_flag else "a whole number from 1 on"
        raise ValueError(f"{path}: {name} has the value {json.dumps(value)}: it is {wanted}")
    return value


def candidates(sweep):
    """All combinations, as arguments of Settings."""
    for values in itertools.product(*sweep.values()):
        yield dict(zip(sweep, values))


def drop_page_cache():
    os.sync()
    with open("/proc/sys/vm/drop_caches", "w", encoding="ascii") as control:
        control.write("1")


@dataclasses.dataclass
class Measured:
    """The options of a handle, and their speeds in GB per second; None if a speed was not measured."""

    options: dict
    read: float = None
    write: float = None

    def speeds(self):
        return {name: speed for name, speed in (("read", self.read), ("write", self.write)) if speed is not None}


def run_sweep(args, io_size, sweep, results):
    """Appends the result of each candidate to `results`, which is valid whenever the sweep is stopped."""
    on_gpu = args.gpu or args.gds
    gpus = [i % torch.cuda.device_count() for i in range(len(args.nvme_dir))] if on_gpu else []
    kinds = [kind for kind, left_out in (("read", args.no_read), ("write", args.no_write)) if not left_out]
    for options in candidates(sweep):
        speeds = {}
        for kind in kinds:
            if args.flush_page_cache:
                drop_page_cache()
            settings = Settings(folders=args.nvme_dir, io_size=io_size, read=kind == "read", loops=args.loops,
                                gpus=gpus, use_gds=args.gds, **options)
            if args.verbose:
                print(f"{kind}: {settings}", file=sys.stderr, flush=True)
            result = measure(settings)
            speeds[kind] = result.e2e_speed
            if args.verbose:
                print(f"{kind}: {result}", file=sys.stderr, flush=True)
        results.append(Measured(settings.options, **speeds))
        reached = ", ".join(f"{kind} {speed:.2f}" for kind, speed in speeds.items())
        print(f"{settings.options}: {reached} GB/sec", file=sys.stderr, flush=True)


def choose(results):
    """The candidate whose read and write speeds together are nearest to the best of each."""
    best = {kind: max(result.speeds()[kind] for result in results) for kind in results[0].speeds()}
    return max(results, key=lambda result: sum(speed / best[kind] for kind, speed in result.speeds().items()))


def report(args, results):
    """Prints the best result before it writes the file, which may fail. Returns the exit status: 1 on failure."""
    if results:
        best = choose(results)
        reached = ", ".join(f"{kind} = {speed:5.2f}" for kind, speed in best.speeds().items())
        print(f"Best performance (GB/sec): {reached}", file=sys.stderr if args.json else sys.stdout)
        print(json.dumps({"aio": best.options}, indent=2), flush=True)
    if not args.log_dir:
        return 0
    rows, path = [result.options | result.speeds() for result in results], Path(args.log_dir) / "sweep.json"
    try:
        path.write_text(json.dumps(rows, indent=2) + "\n", encoding="ascii")
    except OSError as error:
        print(f"weightfs-tune: {path} cannot be written: {error.strerror}", file=sys.stderr)
        return 1
    return 0


def check_log_dir(parser, folder):
    """Checks the log directory before the long sweep begins."""
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        with open(Path(folder) / "sweep.json", "a", encoding="ascii"):
            pass
    except OSError as error:
        parser.error(f"--log_dir {folder}: {error.strerror}")


def main(arguments=None):
    return run("weightfs-tune", lambda: _main(arguments))


def _main(arguments):
    parser, args = parse(arguments)
    if (args.gpu or args.gds) and not torch.cuda.is_available():
        parser.exit(1, f"weightfs-tune: {NO_GPU}\n")
    if args.no_read and args.no_write:
        parser.error("--no_read and --no_write together leave nothing to measure")
    try:
        sweep = read_sweep(args.sweep_config) if args.sweep_config else SWEEP
    except ValueError as error:
        parser.error(str(error))
    if args.log_dir:
        check_log_dir(parser, args.log_dir)
    return _tune(args, args.io_size, sweep)


def _tune(args, io_size, sweep):
    total, results = sum(1 for _ in candidates(sweep)), []
    if args.verbose:
        print(f"{args}\n{total} combinations of {sweep}", file=sys.stderr)
    try:
        run_sweep(args, io_size, sweep, results)
    except Stop:
        print(f"weightfs-tune: stopped early: {len(results)} of {total} combinations were measured", file=sys.stderr)
        report(args, results)
        raise
    except (RuntimeError, OSError) as error:
        print(f"weightfs-tune: {error}", file=sys.stderr)
        report(args, results)
        return 1
    return report(args, results)


if __name__ == "__main__":
    sys.exit(main())
