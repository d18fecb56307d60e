"""weightfs-io: measures reads or writes of tensors, with the options, output and formulas of DeepSpeed's ds_io."""

import argparse
import os
import sys

from weightfs.tools._measure import ENGINES, NO_GPU, Settings, measure, parse_size


def parse(arguments):
    parser = argparse.ArgumentParser(prog="weightfs-io", description=__doc__)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--folder", help="where the files are written and read")
    where.add_argument("--folder_to_device_mapping", nargs="+", metavar="DIR:DEV",
                       help="a process for each; DEV is the number of a GPU, and without --gpu means nothing")
    parser.add_argument("--io_size", default="400M", help="bytes of each file: a number with K, M or G (default 400M)")
    parser.add_argument("--read", action="store_true", help="measure reads (default: writes)")
    parser.add_argument("--block_size", default="1M", help="bytes of one transfer (default 1M)")
    parser.add_argument("--queue_depth", type=int, default=32, help="transfers in the kernel at once (default 32)")
    parser.add_argument("--io_parallel", type=int, default=1, help="slices of each operation (default 1)")
    parser.add_argument("--single_submit", action="store_true", help="one transfer in each system call")
    parser.add_argument("--sequential_requests", action="store_true",
                        help="one batch of queue_depth after the other, without overlap")
    parser.add_argument("--validate", action="store_true", help="compare what was written or read")
    parser.add_argument("--engine", choices=ENGINES, default=ENGINES[0],
                        help="aio_handle (default); aio_basic: a handle for each operation; torch_io: torch.save and "
                        "load; torch_fastio: those of weightfs.torch")
    parser.add_argument("--loops", type=int, default=3, help="measured repetitions (default 3)")
    parser.add_argument("--warmup_loops", type=int, default=1, help="repetitions before them (default 1)")
    parser.add_argument("--multi_process", type=int, default=1, help="processes for each folder (default 1)")
    parser.add_argument("--different_file_each_iteration", action="store_true", help="a new file for each repetition")
    parser.add_argument("--gpu", action="store_true", help="transfer GPU tensors (not in this version)")
    parser.add_argument("--use_gds", action="store_true", help="transfer GPU tensors directly (not in this version)")
    return parser, parser.parse_args(arguments)


def settings_of(parser, args):
    if args.gpu or args.use_gds:
        parser.exit(1, f"weightfs-io: {NO_GPU}\n")
    mappings = args.folder_to_device_mapping or [f"{args.folder}:0"]
    folders = [mapping.rpartition(":")[0] if ":" in mapping else mapping for mapping in mappings]
    for folder in folders:
        if not os.path.isdir(folder):
            parser.error(f"{folder}: no such directory")
    if min(args.queue_depth, args.io_parallel, args.loops, args.multi_process) < 1 or args.warmup_loops < 0:
        parser.error("numbers of loops, processes, slices and transfers begin at 1 (warm-ups at 0)")
    try:
        io_size, block_size = parse_size(args.io_size), parse_size(args.block_size)
    except ValueError as error:
        parser.error(str(error))
    return Settings(folders=[folder for folder in folders for _ in range(args.multi_process)], io_size=io_size,
                    read=args.read, block_size=block_size, queue_depth=args.queue_depth,
                    io_parallel=args.io_parallel, single_submit=args.single_submit,
                    sequential_requests=args.sequential_requests, validate=args.validate, engine=args.engine,
                    loops=args.loops, warmup_loops=args.warmup_loops,
                    different_file_each_iteration=args.different_file_each_iteration)


def report(settings, result):
    name = "Read" if settings.read else "Write"
    print(f"Task {name} Latency = {result.task_latency_s} sec")
    print(f"Task {name} Speed = {result.task_speed} GB/sec")
    print(f"E2E {name} Latency = {result.e2e_latency_s} sec")
    print(f"E2E {name} Speed = {result.e2e_speed} GB/sec")


def main(arguments=None):
    settings = settings_of(*parse(arguments))
    try:
        result = measure(settings)
    except RuntimeError as error:
        print(f"weightfs-io: {error}", file=sys.stderr)
        return 1
    report(settings, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
