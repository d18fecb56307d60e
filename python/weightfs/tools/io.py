# SPDX-License-Identifier: Apache-2.0
"""weightfs-io: measures reads or writes of tensors, with the options, output and formulas of DeepSpeed's ds_io.

After Ctrl-C or SIGTERM it prints the results so far and exits with 130 or 143."""

import argparse
import dataclasses
import sys

from weightfs.tools._torch import torch

from weightfs.bench.program import Parser, Stop, directory, number_from, run, size
from weightfs.tools._measure import ENGINES, NO_GPU, Progress, Settings, measure

FLAGS = {"read": "measure reads (default: writes)", "validate": "compare the data that was written or read",
         "single_submit": "one transfer in each system call",
         "sequential_requests": "one batch of queue_depth after the other, without overlap",
         "include_warmup_time": "include the warm-up repetitions",
         "different_file_each_iteration": "a new file for each repetition", "gpu": "transfer tensors of a GPU",
         "use_gds": "transfer tensors of a GPU with a gds_handle (implies --gpu; its mode: WEIGHTFS_GDS_MODE)",
         "slow_bounce_buffer": "with --gpu: lock new bounce buffers in each repetition",
         "use_accelerator_pin_memory": "page-lock the host's tensors with CUDA, not with the handle",
         "torch_legacy_save": "torch's format before zip files"}


def parse(arguments):
    parser = Parser(prog="weightfs-io", description=__doc__)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--folder", type=directory, help="where the files are written and read")
    where.add_argument("--folder_to_device_mapping", nargs="+", action="extend", metavar="DIR:DEV",
                       help="a process for each; DEV is the number of its GPU, which is ignored without --gpu")
    def number(name, least, default, meaning):
        parser.add_argument(f"--{name}", type=number_from(least), default=default, help=f"{meaning} (default {default})")

    def amount(name, default, meaning):
        parser.add_argument(f"--{name}", type=size, default=default, help=f"{meaning} (default {default})")

    amount("io_size", "400M", "bytes of each file: a number with K, M or G")
    amount("block_size", "1M", "bytes of one transfer")
    amount("fast_io_size", "64M", "no effect: ds_io's buffer for torch_fastio, which needs none here")
    number("queue_depth", 1, 32, "transfers in the kernel at once")
    number("io_parallel", 1, 1, "slices of each operation")
    number("loops", 1, 3, "measured repetitions")
    number("warmup_loops", 0, 1, "warm-up repetitions")
    number("multi_process", 1, 1, "processes for each folder")
    parser.add_argument("--engine", choices=ENGINES, default=ENGINES[0],
                        help="aio_handle (default); aio_basic: a handle for each operation; torch_io: torch.save and "
                        "load; torch_fastio: those of weightfs.torch")
    for name, meaning in FLAGS.items():
        parser.add_argument(f"--{name}", action="store_true", help=meaning)
    return parser, parser.parse_args(arguments)


def settings_of(parser, args):
    on_gpu = args.gpu or args.use_gds
    if (on_gpu or args.use_accelerator_pin_memory) and not torch.cuda.is_available():
        parser.exit(1, f"weightfs-io: {NO_GPU}\n")
    if args.use_gds and args.engine != "aio_handle":
        parser.error("--use_gds is for the engine aio_handle")
    if args.slow_bounce_buffer and (args.use_gds or not args.gpu):
        parser.error("--slow_bounce_buffer is for --gpu without --use_gds")
    places = [_place_of(parser, mapping, on_gpu) for mapping in args.folder_to_device_mapping or [f"{args.folder}:0"]]
    each = [place for place in places for _ in range(args.multi_process)]
    names = {field.name for field in dataclasses.fields(Settings)} & vars(args).keys()
    given = {name: getattr(args, name) for name in names}
    return Settings(**given, folders=[folder for folder, _ in each], gpus=[gpu for _, gpu in each] if on_gpu else [])


def _place_of(parser, mapping, on_gpu):
    """Returns (folder, number of the GPU) from DIR:DEV."""
    folder, colon, gpu = mapping.rpartition(":")
    if not colon:
        folder, gpu = mapping, "0"
    try:
        directory(folder)
    except argparse.ArgumentTypeError as error:
        parser.error(str(error))
    if on_gpu and not (gpu.isdigit() and int(gpu) < torch.cuda.device_count()):
        parser.error(f"{mapping}: there is no GPU {gpu}")
    return folder, int(gpu) if on_gpu else 0


def report(settings, result):
    name = "Read" if settings.read else "Write"
    print(f"Task {name} Latency = {result.task_latency_s} sec")
    print(f"Task {name} Speed = {result.task_speed} GB/sec")
    print(f"E2E {name} Latency = {result.e2e_latency_s} sec")
    print(f"E2E {name} Speed = {result.e2e_speed} GB/sec")


def main(arguments=None):
    return run("weightfs-io", lambda: _main(arguments))


def _main(arguments):
    settings = settings_of(*parse(arguments))
    progress = Progress(settings)
    try:
        result = measure(settings, progress)
    except Stop:
        so_far = progress.result()
        if so_far is not None:
            report(settings, so_far)
        print("weightfs-io: stopped early: "
              f"{'this is of the repetitions so far' if so_far else 'no repetition had ended'}", file=sys.stderr)
        raise
    except RuntimeError as error:
        print(f"weightfs-io: {error}", file=sys.stderr)
        return 1
    report(settings, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
