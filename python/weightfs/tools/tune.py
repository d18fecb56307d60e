"""weightfs-tune: finds the fastest options of a handle for a disk, as DeepSpeed's ds_nvme_tune does.

It prints what it reached, and JSON that configures a handle: weightfs.aio_handle(**json.load(file)["aio"]). With --json
what it reached goes to standard error."""

import argparse
import itertools
import json
import os
import sys
from pathlib import Path

import torch

from weightfs.tools._measure import NO_GPU, Settings, measure, parse_size
from weightfs.tools._program import Parser, run

BLOCK_SIZES = (1 << 20, 8 << 20)
QUEUE_DEPTHS = (32, 128)
PARALLELISMS = (1, 2, 4, 8)


def parse(arguments):
    parser = Parser(prog="weightfs-tune", description=__doc__,
                    formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nvme_dir", nargs="+", required=True, help="a directory on each disk to be used together")
    parser.add_argument("--io_size", default="400M", help="bytes of each file: a number with K, M or G (default 400M)")
    parser.add_argument("--loops", type=int, default=1, help="repetitions of each measurement (default 1)")
    parser.add_argument("--flush_page_cache", action="store_true",
                        help="drop the kernel's page cache before each measurement (needs root)")
    parser.add_argument("--log_dir", help="where the results of all measurements are written (sweep.json)")
    parser.add_argument("--json", action="store_true", help="print nothing but the JSON")
    parser.add_argument("--gpu", action="store_true", help="transfer tensors of GPUs: of as many as there are, in turn")
    parser.add_argument("--gds", action="store_true",
                        help="transfer tensors of GPUs with a gds_handle (implies --gpu; its mode: WEIGHTFS_GDS_MODE)")
    return parser, parser.parse_args(arguments)


def candidates():
    """All combinations, as arguments of Settings."""
    names = ("block_size", "queue_depth", "sequential_requests", "single_submit", "io_parallel")
    for values in itertools.product(BLOCK_SIZES, QUEUE_DEPTHS, (False, True), (False, True), PARALLELISMS):
        yield dict(zip(names, values))


def drop_page_cache():
    os.sync()
    with open("/proc/sys/vm/drop_caches", "w", encoding="ascii") as control:
        control.write("1")


def sweep(args, io_size):
    """(options of a handle, read speed, write speed) of each candidate, in GB a second."""
    results = []
    on_gpu = args.gpu or args.gds
    gpus = [i % torch.cuda.device_count() for i in range(len(args.nvme_dir))] if on_gpu else []
    for options in candidates():
        speeds = []
        for read in (True, False):
            if args.flush_page_cache:
                drop_page_cache()
            settings = Settings(folders=args.nvme_dir, io_size=io_size, read=read, loops=args.loops, gpus=gpus,
                                use_gds=args.gds, **options)
            speeds.append(measure(settings).e2e_speed)
        results.append((settings.options, *speeds))
        print(f"{settings.options}: read {speeds[0]:.2f}, write {speeds[1]:.2f} GB/sec", file=sys.stderr)
    return results


def choose(results):
    """The options whose reads and writes together are nearest to the best of both."""
    best_read, best_write = (max(result[i] for result in results) for i in (1, 2))
    return max(results, key=lambda result: result[1] / best_read + result[2] / best_write)


def check_log_dir(parser, folder):
    """Before what takes long."""
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
    for folder in args.nvme_dir:
        if not os.path.isdir(folder):
            parser.error(f"{folder}: no such directory")
    if args.loops < 1:
        parser.error("--loops begins at 1")
    if args.log_dir:
        check_log_dir(parser, args.log_dir)
    try:
        results = sweep(args, parse_size(args.io_size))
    except ValueError as error:
        parser.error(str(error))
    except (RuntimeError, OSError) as error:
        print(f"weightfs-tune: {error}", file=sys.stderr)
        return 1
    if args.log_dir:
        rows = [options | {"read": read, "write": write} for options, read, write in results]
        (Path(args.log_dir) / "sweep.json").write_text(json.dumps(rows, indent=2) + "\n", encoding="ascii")
    options, read, write = choose(results)
    print(f"Best performance (GB/sec): read = {read:5.2f}, write = {write:5.2f}",
          file=sys.stderr if args.json else sys.stdout)
    print(json.dumps({"aio": options}, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
