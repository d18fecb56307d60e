# SPDX-License-Identifier: Apache-2.0
"""The program behind scripts/report: measures weightfs and its applications on a temporary store, one part after the
other, and writes report.html and report.json."""

import contextlib
import dataclasses
import importlib.metadata
import importlib.util
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

from . import machine, page
from .program import Failure, Parser, command, directory, guarded
from .store import Store, scratch_directory

POOL = {"small": "4G", "full": "24G"}   # size of the temporary store
PACKAGES = ("torch", "numpy", "safetensors", "h5py", "fastsafetensors", "runai-model-streamer", "tensorizer")


@dataclasses.dataclass(frozen=True)
class Part:
    """One program, which prints its result as JSON."""

    name: str
    title: str
    about: str
    packages: tuple   # Python packages that it imports
    command: str      # with {program} {python} {examples} {mount} {host}: a directory beside the store
    sizes: dict       # size of the report -> further arguments
    minutes: dict     # size of the report -> expected duration on 2 idle processors


PARTS = (
    Part("bench", "The filesystem",
         "Unmodified programs on a mount, beside the raw disk (libaio with O_DIRECT) and the host's filesystem.",
         (), "{program} bench {host} --python {python} --json",
         {"small": "--quick", "full": ""}, {"small": 1, "full": 12}),
    Part("hdf5", "HDF5",
         "One dataset, written and read in requests of one size by HDF5's own drivers and by the driver weightfs, on "
         "the mount. The handle is weightfs.aio_handle without HDF5. A write ends when the file is durable; a read "
         "begins with a cold page cache.",
         ("weightfs", "h5py", "numpy"), "{python} -m weightfs.tools.hdf5_bench {mount} --json",
         {"small": "--size 256M --rounds 3", "full": "--requests 1M,4M,16M,64M,256M,1G --size 1G --rounds 5"},
         {"small": 1, "full": 9}),
    Part("checkpoint", "Checkpoints",
         "How long a training loop stands still for a checkpoint, and how long it takes until the checkpoint is "
         "durable, for each way to save one.",
         ("weightfs", "torch"), "{python} -m weightfs.tools.checkpoint {mount} --compare {host} --json",
         {"small": "--size 128M --rounds 3", "full": "--size 1G --rounds 5"}, {"small": 0.5, "full": 8}),
    Part("loads", "Cold loads of safetensors",
         "A model is loaded into memory of the CPU with a cold page cache, from the mount, by weightfs.safetensors and "
         "by other loaders.",
         ("weightfs", "torch"), "{python} -m weightfs.tools.loads {mount} --json",
         {"small": "--size 256M --rounds 5", "full": "--size 2G --rounds 9"}, {"small": 0.5, "full": 6}),
    Part("generate", "Inference with a model larger than its memory",
         "A transformer generates tokens with its weights in memory, offloaded by weightfs.offload to the mount, and "
         "mapped from a file on the host's filesystem. The pages of the file are dropped once before each measurement; "
         "the file then stays in the page cache, unless it is larger than the memory of the machine.",
         ("weightfs", "torch"), "{python} {examples}/offload_generate.py {mount} --mmap_folder {host} --json",
         {"small": "", "full": "--layers 24 --width 1024 --memory 256M --rounds 5"}, {"small": 0.5, "full": 5}),
    Part("train", "Training with a model larger than its memory",
         "A transformer is trained with weights, gradients and optimizer states in memory, and offloaded to the mount. "
         "The offloaded run computes each forward pass twice, and is killed once in the middle of a step.",
         ("weightfs", "torch"), "{python} {examples}/offload_train.py {mount} --json",
         {"small": "--layers 6", "full": "--layers 12 --width 768 --memory 256M --steps 8"},
         {"small": 1, "full": 8}),
)


def parse(arguments):
    parser = Parser(prog="report", description=__doc__)
    parser.add_argument("directory", type=directory, help="where the temporary store is created")
    parser.add_argument("--program", type=os.path.abspath, required=True, help="the program weightfs")
    parser.add_argument("--examples", type=os.path.abspath, default="examples", help="directory of the examples")
    parser.add_argument("--size", choices=POOL, default="small")
    parser.add_argument("--only", type=lambda text: text.split(","), help="only these parts, separated by commas")
    parser.add_argument("--out", type=Path, required=True, help="directory of the report")
    args = parser.parse_args(arguments)
    names = [part.name for part in PARTS]
    for name in args.only or ():
        if name not in names:
            parser.error(f"--only: there is no part {name!r}; the parts are {', '.join(names)}")
    args.parts = [part for part in PARTS if args.only is None or part.name in args.only]
    return args


def measure(part, args, mount, host):
    """Runs one part. Returns its result."""
    about = {"name": part.name, "title": part.title, "about": part.about}
    missing = [name for name in part.packages if importlib.util.find_spec(name) is None]
    if missing:
        return {**about, "state": "missing", "reason": f"needs {', '.join(missing)}; scripts/setup installs it, or "
                                                       f"says why it cannot"}
    begin, log = time.monotonic(), args.out / f"{part.name}.log"
    words = [word.format(program=args.program, python=sys.executable, examples=args.examples, mount=mount, host=host)
             for word in f"{part.command} {part.sizes[args.size]}".split()]
    try:
        with open(log, "w+", encoding="utf-8") as errors:
            result = json.loads(command(*words, errors=errors))
        log.unlink()
        return {**result, **about, "state": "done", "seconds": time.monotonic() - begin}
    except (Failure, OSError, ValueError) as error:
        return {**about, "state": "failed", "reason": f"{error} (all of its errors: {log})"}


def measure_all(args, mount, host):
    """Runs the parts and prints the progress. Returns their results."""
    results, begin = [], time.monotonic()
    expected = [60 * part.minutes[args.size] for part in args.parts]
    for number, part in enumerate(args.parts):
        pace = (time.monotonic() - begin) / sum(expected[:number]) if number else 1
        print(f"[{number + 1} of {len(args.parts)}] {part.title}; about {sum(expected[number:]) * pace / 60:.1f} min "
              f"left", flush=True)
        results.append(measure(part, args, mount, host))
        if results[-1]["state"] != "done":
            print(f"report: {part.name}: {results[-1]['state']}: {results[-1]['reason']}", file=sys.stderr, flush=True)
    return results


def facts(args):
    """The machine and the versions."""
    commit = subprocess.run(["git", "-C", args.examples, "describe", "--always", "--dirty"], capture_output=True,
                            text=True, check=False).stdout.strip()
    versions = [f"Python {platform.python_version()}"]
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions.append(f"{name} {importlib.metadata.version(name)}")
    return {"weightfs": command(args.program, "--version").strip() + f", commit {commit}" * bool(commit),
            **machine.facts(args.directory), "packages": ", ".join(versions), "size": args.size,
            "load average at the start": load_average()}


def load_average():
    return " ".join(f"{load:.1f}" for load in os.getloadavg())


def alarms(found):
    """A warning if other work ran on the machine."""
    load = float(found["load average at the start"].split()[0])
    return [] if load < int(found["processors"].split()[0]) / 2 else [
        f"The load average was {load} before the first measurement: other work slowed these figures. Compare ratios, "
        f"not seconds, and repeat the run on an idle machine."]


def run(args):
    """Measures on a temporary store, which is removed at the end. Returns the report."""
    begin, found = time.monotonic(), facts(args)
    with scratch_directory(os.path.abspath(args.directory), "weightfs-report") as base:
        host = os.path.join(base, "host")
        os.mkdir(host)
        print(f"creating a store of {POOL[args.size]} in {base}", flush=True)
        with Store(args.program, f"{base}/main", POOL[args.size]) as store:
            results = measure_all(args, store.mount, host)
    found |= {"load average at the end": load_average(), "duration": f"{(time.monotonic() - begin) / 60:.1f} min"}
    return {"facts": found, "parts": results}


def write(report, out):
    (out / "report.json").write_text(json.dumps(report, indent=1), encoding="utf-8")
    (out / "report.html").write_text(page.html("weightfs report", report["facts"], report["parts"],
                                               alarms(report["facts"])), encoding="utf-8")


def main(arguments=None):
    args = parse(arguments)

    def work():
        try:
            args.out.mkdir(parents=True, exist_ok=True)
            report = run(args)
            write(report, args.out)
        except (Failure, OSError) as error:
            print(f"report: {error}", file=sys.stderr)
            return 1
        except SystemExit:
            print("report: interrupted: no report was written", file=sys.stderr)
            raise
        print(f"wrote {args.out / 'report.html'} and report.json")
        return 1 if any(result["state"] == "failed" for result in report["parts"]) else 0

    return guarded(work)


if __name__ == "__main__":
    sys.exit(main())
