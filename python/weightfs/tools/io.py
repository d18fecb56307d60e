# SPDX-License-Identifier: Apache-2.0
"""weightfs-io: measures reads or writes of tensors, with the options, output and formulas of DeepSpeed's ds_io.

After Ctrl-C or SIGTERM it prints the results so far and exits with 130 or 143."""

import argparse
import dataclasses
import sys

from weightfs.tools._torch import torch

from weightfs.bench.program import Parser, Stop, directory, run
from weightfs.tools._measure import NO_GPU, Progress, Settings, measure


def parse(arguments):
    parser = Parser(prog="weightfs-io", description=__doc__)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--folder", type=directory, help="where the files are written and read")
    where.add_argument("--folder_to_device_mapping", nargs="+", action="extend", metavar="DIR:DEV",
                       help="a process for each; DEV is the number of its GPU, which is ignored without --gpu")
    for setting in dataclasses.fields(Settings):
        if setting.metadata:
            parser.add_argument(f"--{setting.name}", **setting.metadata)
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
    folders, gpus = ([place[part] for place in places for _ in range(args.multi_process)] for part in (0, 1))
    given = {name: value for name, value in vars(args).items() if not name.startswith("folder")}
    return Settings(folders=folders, gpus=gpus if on_gpu else [], **given)


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
    def program():
        settings = settings_of(*parse(arguments))
        progress = Progress(settings)
        try:
            report(settings, measure(settings, progress))
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
        return 0

    return run("weightfs-io", program)


if __name__ == "__main__":
    sys.exit(main())
