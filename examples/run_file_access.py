#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs all file-access examples in a folder and prints a table: GB/sec, and how many times Python's speed that is."""

import os
import re
import subprocess
import sys
from pathlib import Path

import file_access as access

HERE = Path(__file__).resolve().parent
ROWS = [("cpu", "py"), ("cpu", "aio"), ("gpu", "py"), ("gpu", "aio"), ("gpu", "gds")]
NAMES = {"py": "Python", "aio": "AIO", "gds": "GDS"}


def run(script, *options):
    """GB/sec, or why there is none."""
    command = [sys.executable, HERE / script, *map(str, options)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    speed = re.search(r"at ([0-9.]+) GB/sec", done.stdout)
    if done.returncode == 0 and speed:
        return float(speed.group(1))
    if "no GPU" in done.stderr:
        return "no GPU"
    # One that was killed says nothing.
    return (done.stderr.strip().splitlines() or [f"{script} ended with status {done.returncode}"])[-1]


def table(title, results):
    print(f"\n{title}\n| tensor | with | GB/sec | speed-up over Python |\n|---|---|---:|---:|")
    for (device, way), result in results.items():
        base = results[device, "py"]
        ratio = f"{result / base:.1f}x" if isinstance(result, float) and isinstance(base, float) and base else "-"
        speed = result if isinstance(result, str) else f"{result:.2f}"
        print(f"| {device.upper()} | {NAMES[way]} | {speed} | {ratio} |")


def main():
    parser = access.Parser(description=__doc__)
    parser.add_argument("--nvme_folder", type=access.folder, required=True,
                        help="where files are written and read; removed at the end")
    parser.add_argument("--mb_size", type=access.at_least_one, default=1024,
                        help="size of the tensor in MiB (default 1024)")
    parser.add_argument("--loop", type=access.at_least_one, default=3, help="repetitions (default 3)")
    parser.add_argument("--validate", action="store_true", help="compare what was moved")
    args = parser.parse_args()
    common = ["--loop", args.loop, *(["--validate"] if args.validate else [])]
    source = Path(args.nvme_folder) / f"_weightfs_example_source_{os.getpid()}"
    try:
        with open(source, "wb") as stream:
            for _ in range(args.mb_size):
                stream.write(os.urandom(1 << 20))
            os.fsync(stream.fileno())
        load = {(device, way): run("load_tensor.py", "--with", way, "--device", device, "--input_file", source, *common)
                for device, way in ROWS}
    finally:
        source.unlink(missing_ok=True)
    store = {(device, way): run("store_tensor.py", "--with", way, "--device", device, "--nvme_folder", args.nvme_folder,
                                "--mb_size", args.mb_size, *common) for device, way in ROWS}
    table("Loading a tensor from a file", load)
    table("Storing a tensor in a file", store)
    failed = [result for result in (*load.values(), *store.values()) if isinstance(result, str) and result != "no GPU"]
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
