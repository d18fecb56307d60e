# SPDX-License-Identifier: Apache-2.0
"""One run of scripts/report: a temporary store, the parts one after the other, and the files of the report."""

import contextlib
import datetime
import importlib.metadata
import importlib.util
import json
import os
import platform
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

from report import figures, page
from report.parts import PARTS, POOL, Places
from suite import system
from weightfs.tools._program import Parser, leave

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("torch", "numpy", "safetensors", "h5py", "fastsafetensors", "runai-model-streamer", "tensorizer")


def parse(arguments):
    parser = Parser(prog="report", description=__doc__)
    parser.add_argument("directory", help="where the temporary store is created")
    parser.add_argument("--program", required=True, help="the program weightfs")
    parser.add_argument("--size", choices=POOL, default="small")
    parser.add_argument("--only", help="only these parts: names, separated by commas")
    parser.add_argument("--out", type=Path, required=True, help="directory of the report")
    args = parser.parse_args(arguments)
    names = [part.name for part in PARTS]
    for name in (args.only or "").split(",") if args.only is not None else ():
        if name not in names:
            parser.error(f"--only: there is no part {name!r}; the parts are {', '.join(names)}")
    args.parts = [part for part in PARTS if args.only is None or part.name in args.only.split(",")]
    args.program = os.path.abspath(args.program)
    return args


def output_of(words, log):
    """Runs a program to its end and returns what it printed on standard output. Raises: system.Failure."""
    with open(log, "w", encoding="utf-8") as errors:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True,
                                   start_new_session=True)
        try:
            out, _ = process.communicate()
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            process.communicate()   # until no process of its group uses the mount
            raise
    if process.returncode:
        last = (system.read_text(log).strip() or "it printed no error").splitlines()[-1]
        raise system.Failure(f"status {process.returncode}: {last} (all of its errors: {log})")
    return out


def measure(part, places, size, out):
    """Runs one part. Returns its entry in the report."""
    words, begin, log = part.words(places, size), time.monotonic(), out / f"{part.name}.log"
    entry = {"name": part.name, "title": part.title, "about": part.about, "state": "done", "reason": None}
    missing = [name for name in part.packages if importlib.util.find_spec(name) is None]
    if missing:
        return {**entry, "state": "missing", "reason": f"needs {', '.join(missing)}; scripts/setup installs it, or "
                                                       f"says why it cannot"}
    try:
        printed = output_of(words, log)
        entry["data"] = json.loads(system.read_text(places.json) or printed)
        log.unlink()
    except (system.Failure, OSError, ValueError) as error:
        entry |= {"state": "failed", "reason": str(error)}
    with contextlib.suppress(FileNotFoundError):
        os.unlink(places.json)
    return {**entry, "seconds": time.monotonic() - begin}


def measure_all(args, places):
    """Runs the parts and prints the progress. Returns their entries."""
    entries, begin = [], time.monotonic()
    expected = [60 * part.minutes[args.size] for part in args.parts]
    for number, part in enumerate(args.parts):
        pace = (time.monotonic() - begin) / sum(expected[:number]) if number else 1
        print(f"[{number + 1} of {len(args.parts)}] {part.title}; about {sum(expected[number:]) * pace / 60:.1f} min "
              f"left", flush=True)
        entries.append(measure(part, places, args.size, args.out))
        if entries[-1]["state"] != "done":
            print(f"report: {part.name}: {entries[-1]['state']}: {entries[-1]['reason']}", file=sys.stderr, flush=True)
    return entries


def facts(args):
    """The machine and the versions."""
    models = [line.partition(": ")[2] for line in system.read_text("/proc/cpuinfo").splitlines()
              if line.startswith("model name")]
    commit = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty"], capture_output=True, text=True,
                            check=False).stdout.strip()
    versions = {}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return {"date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
            "weightfs": system.command(args.program, "--version").strip() + (f", commit {commit}" if commit else ""),
            "processors": f"{os.cpu_count()} × {models[0] if models else 'unknown'}",
            "memory": system.size_text(system.kernel_figure("MemTotal")),
            "kernel": f"{platform.system()} {platform.release()}",
            "filesystem of the store": "{} on {}".format(*system.mount_of(args.directory)),
            "packages": ", ".join([f"Python {platform.python_version()}", *(f"{name} {version}" for name, version
                                                                            in versions.items())]),
            "size": args.size}


def load_average():
    return " ".join(f"{load:.1f}" for load in os.getloadavg())


def run(args):
    """Measures on a temporary store, which is removed at the end. Returns the report."""
    begin, found = time.monotonic(), facts(args) | {"load average at the start": load_average()}
    with system.scratch_directory(os.path.abspath(args.directory), "weightfs-report") as base:
        host = os.path.join(base, "host")
        os.mkdir(host)
        settings = types.SimpleNamespace(program=args.program, mount_options="")
        owner = types.SimpleNamespace(base=base, options=settings, end_processes=lambda: None)
        print(f"creating a store of {POOL[args.size]} in {base}", flush=True)
        with system.Store(owner, "main", POOL[args.size]) as mounted:
            entries = measure_all(args, Places(args.program, mounted.path, host, os.path.join(base, "result.json")))
    found |= {"load average at the end": load_average(), "duration": f"{(time.monotonic() - begin) / 60:.1f} min"}
    return {"facts": found, "parts": entries}


def write(report, out):
    (out / "report.json").write_text(json.dumps(report, indent=1), encoding="utf-8")
    drawings = {entry["name"]: figures.svg(entry) for entry in report["parts"] if entry["state"] == "done"}
    (out / "report.html").write_text(page.html(report, drawings), encoding="utf-8")
    (out / "report.md").write_text(page.markdown(report), encoding="utf-8")


def main(arguments=None):
    args = parse(arguments)
    signal.signal(signal.SIGTERM, leave)
    for number in (signal.SIGINT, signal.SIGHUP):   # SIGTERM is the one that the store blocks while it is unmounted
        signal.signal(number, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    try:
        args.out.mkdir(parents=True, exist_ok=True)
        report = run(args)
        write(report, args.out)
    except (system.Failure, OSError) as error:
        print(f"report: {error}", file=sys.stderr)
        return 1
    except SystemExit:
        print("report: interrupted: no report was written", file=sys.stderr)
        raise
    print(f"wrote {args.out / 'report.html'}, report.md and report.json")
    return 1 if any(entry["state"] == "failed" for entry in report["parts"]) else 0
