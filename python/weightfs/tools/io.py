# SPDX-License-Identifier: Apache-2.0
"""weightfs-io: measures reads or writes of tensors, with the options, output and formulas of DeepSpeed's ds_io.

After Ctrl-C or SIGTERM it prints the results so far and exits with 130 or 143."""

import argparse
import dataclasses
import sys

from weightfs.tools._torch import torch

from weightfs.bench.program import Parser, Stop, directory, number_from, run, size
from weightfs.tools._measure import ENGINES, NO_GPU, Progress, Settings, measure


def parse(arguments):
    parser = Parser(prog="weightfs-io", description=__doc__)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--folder", type=directory, help="where the files are written and read")
    where.add_argument("--folder_to_device_mapping", nargs="+", action="extend", metavar="DIR:DEV",
                       help="a process for each; DEV is the number of its GPU, which is ignored without --gpu")
    parser.add_argument("--io_size", type=size, default="400M", help="bytes of each file: a number with K, M or G (default 400M)")
    parser.add_argument("--read", action="store_true", help="measure reads (default: writes)")
    parser.add_argument("--block_size", type=size, default="1M", help="bytes of one transfer (default 1M)")
    parser.add_argument("--queue_depth", type=number_from(1), default=32, help="transfers in the kernel at once (default 32)")
    parser.add_argument("--io_parallel", type=number_from(1), default=1, help="slices of each operation (default 1)")
    parser.add_argument("--single_submit", action="store_true", help="one transfer in each system call")
    parser.add_argument("--sequential_requests", action="store_true",
                        help="one batch of queue_depth after the other, without overlap")
    parser.add_argument("--validate", action="store_true", help="compare the data that was written or read")
    parser.add_argument("--engine", choices=ENGINES, default=ENGINES[0],
                        help="aio_handle (default); aio_basic: a handle for each operation; torch_io: torch.save and "
                        "load; torch_fastio: those of weightfs.torch")
    parser.add_argument("--loops", type=number_from(1), default=3, help="measured repetitions (default 3)")
    parser.add_argument("--warmup_loops", type=number_from(0), default=1, help="warm-up repetitions (default 1)")
    parser.add_argument("--include_warmup_time", action="store_true", help="include the warm-up repetitions")
    parser.add_argument("--multi_process", type=number_from(1), default=1, help="processes for each folder (default 1)")
    parser.add_argument("--different_file_each_iteration", action="store_true", help="a new file for each repetition")
    parser.add_argument("--gpu", action="store_true", help="transfer tensors of a GPU")
    parser.add_argument("--use_gds", action="store_true",
                        help="transfer tensors of a GPU with a gds_handle (implies --gpu; its mode: WEIGHTFS_GDS_MODE)")
    parser.add_argument("--slow_bounce_buffer", action="store_true",
                        help="with --gpu: lock new bounce buffers in each repetition")
    parser.add_argument("--use_accelerator_pin_memory", action="store_true",
                        help="page-lock the host's tensors with CUDA, not with the handle")
    parser.add_argument("--torch_legacy_save", action="store_true", help="torch's format before zip files")
    parser.add_argument("--fast_io_size", type=size, default="64M",
                        help="no effect: ds_io's buffer for torch_fastio, which needs none here")
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
    given = {field.name: getattr(args, field.name) for field in dataclasses.fields(Settings) if hasattr(args, field.name)}
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
