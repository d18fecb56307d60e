# SPDX-License-Identifier: Apache-2.0
"""The arguments of `weightfs bench`. All of them are checked before anything is measured or created."""

import argparse
import json
import os
import random
import shlex

from . import rows
from .machine import MIB, mount_of
from .program import Failure, Parser, command, directory, number_from, size

SIZE_STEP, LEAST_SIZE = 2 * MIB, 32 * MIB
FEWEST_ROUNDS = 5
SUMMARY = "Compare a mount with the raw disk and the host's filesystem"
FOOTER = """The reference is fio (package fio): libaio with O_DIRECT, 32 requests of 1 MiB in flight, into huge pages,
on the host's filesystem. A ratio that misses its target is reported; the command still succeeds.

Examples:
  weightfs bench /mnt/tensors --json bench.json --report bench.html
  weightfs bench /var/tmp --only 'read*,write-1m'
  weightfs bench /dev/shm --size 1G"""


class Formatter(argparse.RawDescriptionHelpFormatter):
    """The layout of the program's other commands."""

    def __init__(self, prog):
        super().__init__(prog, max_help_position=34, width=100)

    def _format_action_invocation(self, action):
        return super()._format_action_invocation(action).replace(", ", ",")


def make_parser():
    parser = Parser(prog="weightfs bench", description=SUMMARY, epilog=FOOTER, add_help=False,
                    formatter_class=Formatter)
    parser._positionals.title, parser._optionals.title = "Positionals", "Options"
    add = parser.add_argument
    add("directory", nargs="?", metavar="DIR", help="A directory in a mount: measures that mount. Any other directory: "
        "creates a store there, measures it and removes it")
    add("-h", "--help", action="help", help="Print this help message and exit")
    add("--size", type=size, default=0, metavar="SIZE", help="Size of the large file: a multiple of 2M, at least 32M. "
        "Default: depends on free space and memory")
    add("--rounds", type=number_from(0), metavar="N", help="Counted rounds, after one warm-up round: at least 5, or 1 "
        "with --quick. Default: the minimum")
    add("--quick", action="store_true", help="Little data and one round: for a quick check, not for results")
    add("--only", action="extend", type=lambda text: text.split(","), default=[], nargs=1, metavar="ROW,...",
        help="Only these rows or groups: names or shell patterns, separated by commas")
    add("--list", action="store_true", help="List the rows and their targets, and measure nothing")
    add("--json", nargs="?", const="-", metavar="FILE", help="Write every sample as JSON to FILE; without FILE to "
        "standard output")
    add("--report", metavar="FILE.html", help="Write a self-contained page with tables and bars to FILE.html")
    add("-o", dest="mount_options", metavar="OPTIONS", help="Mount options of the store that bench creates")
    add("--host", type=directory, metavar="DIR", help="Directory for the host's files. Default: next to the store")
    add("--python", metavar="PATH", help="Python of the torch, safetensors and numpy rows. Default: that of "
        "$VIRTUAL_ENV, or python3")
    add("--seed", type=number_from(1), metavar="N", help="Seed of the order and of the random offsets, at least 1. "
        "Default: a random one, which the run prints")
    add("--drop-caches", action="store_true", help="Drop the caches of the whole machine before every cold read, as "
        "root. Default: only those of the benchmark's files")
    return parser


def describe():
    """The options for the man page and for completions. The build installs this text."""
    actions = make_parser()._actions
    return json.dumps({"footer": FOOTER, "options": [
        {"names": action.option_strings, "value": action.metavar or "", "meaning": action.help,
         "optional_value": bool(action.option_strings) and action.nargs == "?", "repeated": action.nargs == 1}
        for action in sorted(actions, key=lambda action: action.dest != "help")]})


def check_size(parser, value):
    if value and value < LEAST_SIZE:
        parser.error(f"--size {value}: too small; give at least {LEAST_SIZE // MIB}M")
    if value % SIZE_STEP:
        below = value // SIZE_STEP * SIZE_STEP // MIB
        parser.error(f"--size {value // MIB}M: not a multiple of {SIZE_STEP // MIB}M; give e.g. {below}M or "
                     f"{below + SIZE_STEP // MIB}M")


def check_mount_options(parser, options):
    if options.mount_options and options.store:
        parser.error(f"-o applies only to a store that bench creates; {options.directory} is in an existing mount")
    if options.mount_options:
        try:
            command(options.program, "mount", "/proc", options.directory, "-o", options.mount_options)
        except Failure as error:   # always, because /proc is no store; but the options are checked first
            reason = str(error).partition("failed: weightfs: ")[2]
            if not reason.startswith("/proc"):
                parser.error(f"-o {options.mount_options}: {reason}")


def parse(program, arguments):
    """Returns the complete options, or ends the process with a line that names the argument and its limits."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    options.only = [name for names in options.only for name in names]
    options.program = program
    if options.list:
        if options.report:
            parser.error("--report needs a run, and --list measures nothing; omit one of them")
        return options
    if not options.directory:
        parser.error(f"DIR is missing: --json took '{options.json}' as its FILE; write '{options.json} --json'"
                     if options.json and os.path.isdir(options.json) else
                     "DIR is missing: give a mount or any directory; e.g. 'weightfs bench /var/tmp'")
    if not os.path.isdir(options.directory):
        parser.error(f"{options.directory}: no such directory; create it first")
    check_size(parser, options.size)
    fewest = 1 if options.quick else FEWEST_ROUNDS
    options.rounds = fewest if options.rounds is None else options.rounds
    if options.rounds < fewest:
        parser.error(f"--rounds {options.rounds}: too few for a median; give at least {FEWEST_ROUNDS}, or at least 1 "
                     "with --quick")
    options.directory = os.path.realpath(options.directory)
    kind, source = mount_of(options.directory)
    options.store = source if kind == "fuse.weightfs" else ""
    if options.store and not os.path.isdir(options.store) and not options.host:
        parser.error(f"--host is missing: the store of {options.directory} has no directory; name one of the disk to "
                     "compare with, e.g. --host /var/tmp")
    check_mount_options(parser, options)
    for pattern in options.only:
        if not any(rows.is_selected(row, [pattern]) for row in rows.ROWS):
            parser.error(f"--only {pattern}: no such row or group; 'weightfs bench --list' shows them")
    if options.drop_caches and not os.access("/proc/sys/vm/drop_caches", os.W_OK):
        parser.error("--drop-caches: only root may drop the machine's caches; without it, only the benchmark's files "
                     "are dropped")
    options.seed = options.seed or random.getrandbits(32) or 1
    return options


def command_of(options, file_size):
    """The command line that repeats a run."""
    words = ["weightfs", "bench", options.directory]
    values = vars(options) | {"size": f"{file_size // MIB}M", "json": None, "report": None}
    for action in make_parser()._actions:
        value = values.get(action.dest)
        if action.option_strings and value:
            words += [action.option_strings[-1], *([] if value is True else [
                ",".join(value) if isinstance(value, list) else str(value)])]
    return shlex.join(words)
