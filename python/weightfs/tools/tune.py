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

from weightfs.bench.machine import write_text
from weightfs.bench.program import Parser, Stop, directory, number_from, run, size
from weightfs.tools._measure import NO_GPU, Settings, measure

# The values to try. The names are options of weightfs-io and arguments of Settings.
SWEEP = {"block_size": [1 << 20, 8 << 20], "queue_depth": [32, 128], "sequential_requests": [False, True],
         "single_submit": [False, True], "io_parallel": [1, 2, 4, 8]}


def parse(arguments):
    parser = Parser(prog="weightfs-tune", description=__doc__)
    parser.add_argument("--nvme_dir", type=directory, nargs="+", required=True,
                        help="a directory on each disk to be used together")
    parser.add_argument("--sweep_config", metavar="FILE", type=read_sweep, default=SWEEP,
                        help='settings to try, as JSON: {"block_size": ["128K", "1M"], "queue_depth": [32, 128], '
                        '"sequential_requests": [false], "single_submit": [false], "io_parallel": [1, 8]}; omitted '
                        "settings have the defaults of weightfs-io (without the option: 64 combinations)")
    parser.add_argument("--no_read", action="store_true", help="do not measure reads")
    parser.add_argument("--no_write", action="store_true", help="do not measure writes")
    parser.add_argument("--io_size", type=size, default="400M", help="bytes of each file, with K, M or G (default 400M)")
    parser.add_argument("--loops", type=number_from(1), default=1, help="repetitions of each measurement (default 1)")
    parser.add_argument("--flush_page_cache", action="store_true",
                        help="drop the kernel's page cache before each measurement (needs root)")
    parser.add_argument("--log_dir", type=log_dir, help="directory for the results of all measurements (sweep.json)")
    parser.add_argument("--json", action="store_true", help="print only the JSON")
    parser.add_argument("--verbose", action="store_true", help="print the settings and seconds of each measurement")
    parser.add_argument("--gpu", action="store_true", help="transfer tensors of all GPUs, in turn")
    parser.add_argument("--gds", action="store_true",
                        help="transfer tensors of GPUs with a gds_handle (implies --gpu; its mode: WEIGHTFS_GDS_MODE)")
    args = parser.parse_args(arguments)
    if (args.gpu or args.gds) and not torch.cuda.is_available():
        parser.exit(1, f"weightfs-tune: {NO_GPU}\n")
    if args.no_read and args.no_write:
        parser.error("--no_read and --no_write together leave nothing to measure")
    return args


def read_sweep(path):
    """Reads the sweep from a file: a type of arguments."""
    def reject(reason):
        raise argparse.ArgumentTypeError(f"{path}: {reason}")

    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        reject(error.strerror)
    except ValueError as error:
        reject(f"it is no JSON: {error}")
    if not isinstance(content, dict) or not content:
        reject("it is no dict of options and lists of values")
    kinds = {setting.name: setting.metadata.get("type") for setting in dataclasses.fields(Settings)}
    for name, values in content.items():
        if name not in SWEEP:
            reject(f"'{name}' is none of {', '.join(SWEEP)}")
        if not isinstance(values, list) or not values:
            reject(f"the values of {name} are no list, or an empty one")
        if kinds[name] is None and not all(isinstance(value, bool) for value in values):
            reject(f"the values of {name} are not true or false")
        try:
            values[:] = [kinds[name](str(value)) if kinds[name] else value for value in values]
        except argparse.ArgumentTypeError as error:
            reject(f"{name}: {error}")
    return content


def candidates(sweep):
    """All combinations, as arguments of Settings."""
    return [dict(zip(sweep, values)) for values in itertools.product(*sweep.values())]


def run_sweep(args, results):
    """Appends (options of a handle, speeds in GB per second) of each candidate to `results`, which is valid at any
    stop."""
    gpus = [i % torch.cuda.device_count() for i in range(len(args.nvme_dir))] if args.gpu or args.gds else []
    kinds = [kind for kind, left_out in (("read", args.no_read), ("write", args.no_write)) if not left_out]
    for options in candidates(args.sweep_config):
        speeds = {}
        for kind in kinds:
            if args.flush_page_cache:
                os.sync()
                write_text("/proc/sys/vm/drop_caches", "1")
            settings = Settings(folders=args.nvme_dir, io_size=args.io_size, read=kind == "read", loops=args.loops,
                                gpus=gpus, use_gds=args.gds, **options)
            result = measure(settings)
            speeds[kind] = result.e2e_speed
            if args.verbose:
                print(f"{kind}: {settings}\n{kind}: {result}", file=sys.stderr, flush=True)
        results.append((settings.options, speeds))
        reached = ", ".join(f"{kind} {speed:.2f}" for kind, speed in speeds.items())
        print(f"{settings.options}: {reached} GB/sec", file=sys.stderr, flush=True)


def choose(results):
    """The candidate whose read and write speeds together are nearest to the best of each."""
    best = {kind: max(speeds[kind] for _, speeds in results) for kind in results[0][1]}
    return max(results, key=lambda result: sum(speed / best[kind] for kind, speed in result[1].items()))


def report(args, results):
    """Prints the best result before it writes the file, which may fail. Returns the exit status: 1 on failure."""
    if results:
        options, speeds = choose(results)
        reached = ", ".join(f"{kind} = {speed:5.2f}" for kind, speed in speeds.items())
        print(f"Best performance (GB/sec): {reached}", file=sys.stderr if args.json else sys.stdout)
        print(json.dumps({"aio": options}, indent=2), flush=True)
    try:
        if args.log_dir:
            write_text(args.log_dir / "sweep.json",
                       json.dumps([options | speeds for options, speeds in results], indent=2) + "\n")
    except OSError as error:
        print(f"weightfs-tune: {args.log_dir / 'sweep.json'} cannot be written: {error.strerror}", file=sys.stderr)
        return 1
    return 0


def log_dir(text):
    """The log directory, which is checked before the long sweep begins: a type of arguments."""
    try:
        Path(text).mkdir(parents=True, exist_ok=True)
        open(Path(text) / "sweep.json", "a", encoding="ascii").close()
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text}: {error.strerror}") from error
    return Path(text)


def main(arguments=None):
    def program():
        args, results = parse(arguments), []
        total, status = len(candidates(args.sweep_config)), 0
        if args.verbose:
            print(f"{args}\n{total} combinations of {args.sweep_config}", file=sys.stderr)
        try:
            run_sweep(args, results)
        except Stop:
            print(f"weightfs-tune: stopped early: {len(results)} of {total} combinations were measured",
                  file=sys.stderr)
            report(args, results)
            raise
        except (RuntimeError, OSError) as error:
            print(f"weightfs-tune: {error}", file=sys.stderr)
            status = 1
        return report(args, results) or status

    return run("weightfs-tune", program)


if __name__ == "__main__":
    sys.exit(main())
