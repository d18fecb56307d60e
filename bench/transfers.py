#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures push and pull beside curl and s5cmd, or what a push costs the saves beside it, on a temporary store.

  bench/transfers.py DIR                    rates and processor time, with Ceph's gateway in memory
  bench/transfers.py DIR --beside 100M max  saves of 512 MiB beside a push at these rates, with a service that discards

Every round runs each case once, in a new order; the result has medians and ratios of one round. It needs curl, boto3,
s5cmd (optional), and ceph-mon, ceph-osd and radosgw, or torch for --beside; a free disk of three times the data; and a
machine without other work. The gateway shares this machine: its own time is beside ours."""
import argparse
import contextlib
import itertools
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:1] = [str(ROOT), str(ROOT / "tests")]

from bench.compare import measure, ratio  # noqa: E402
from bench.machine import GIB, MIB, children_cpu_seconds, cpu_seconds, sync_file  # noqa: E402
from bench.program import Parser, command, directory, number_from, size  # noqa: E402
from bench.store import Store  # noqa: E402
from harness.radosgw import Radosgw, missing_programs  # noqa: E402
from harness.s3_probe import clean_environment  # noqa: E402
from harness.s3_sink import S3Sink  # noqa: E402

PART = 16 * MIB
CONNECTIONS = 16
TIMED_SAVES_S = 6


def write_files(directory, files, size):
    directory.mkdir()
    block = random.randbytes(min(size, 64 * MIB))
    for number in range(files):
        with open(directory / f"file{number}", "wb") as file:
            for _ in range(size // len(block)):
                file.write(block)
    return directory


def curl_words(s3, base, args, operation, series, **options):
    """The program for an operation on all objects of a series, which have the size of a part: boto3 signs the requests
    and curl sends them."""
    names = [f"{series}-curl/file{number}/part{part}" for number in range(args.files)
             for part in range(args.size // PART)]
    urls = [s3.generate_presigned_url(operation, {"Bucket": "tests", "Key": name}) for name in names]
    settings = "".join(f'{name} = "{value}"\n' for name, value in {**options, "output": "/dev/null"}.items())
    config = base / "curl.config"
    config.write_text("next\n".join(f'url = "{url}"\n{settings}' for url in urls), encoding="utf-8")
    return ["curl", "--silent", "--show-error", "--fail-early", "--parallel", "--parallel-max", CONNECTIONS,
            "--config", config]


def client_of(gateway):
    """boto3's client of a gateway, which has a bucket."""
    import boto3
    import botocore.config
    environment = gateway.environment()
    s3 = boto3.client("s3", endpoint_url=gateway.url, region_name="us-east-1",
                      aws_access_key_id=environment["AWS_ACCESS_KEY_ID"],
                      aws_secret_access_key=environment["AWS_SECRET_ACCESS_KEY"],
                      config=botocore.config.Config(proxies={}, s3={"addressing_style": "path"}))
    s3.create_bucket(Bucket="tests")
    return s3


def measure_transfers(args, base):
    total, rounds = args.size * args.files, []
    with contextlib.ExitStack() as stack:
        # Ceph collects deleted objects late, so the memory has room for two rounds.
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="wfs-gw-", dir="/tmp"))
        gateway = stack.enter_context(Radosgw(Path(directory) / "g", size=6 * total + 2 * GIB))
        store = stack.enter_context(Store(args.program, base / "store", total * 2 + GIB))
        environment = clean_environment({**gateway.environment(), "S3_ENDPOINT_URL": gateway.url})
        service = [process.pid for process in gateway.processes.values()]
        s3, mount = client_of(gateway), Path(store.mount)
        source, target = write_files(mount / "source", args.files, args.size), mount / "target"
        (part := base / "part").write_bytes(random.randbytes(PART))
        s5cmd = shutil.which("s5cmd", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")

        def timed(name, words):
            def spent():
                return children_cpu_seconds(), cpu_seconds(store.daemon), cpu_seconds(*service)

            before, start = spent(), time.monotonic()
            command(*words, env=environment)
            rate = total / MIB / (time.monotonic() - start)
            rounds[-1][name] = {"MiB/s": rate, **{
                f"{what} s/GiB": (now - then) * GIB / total
                for what, now, then in zip(("client", "mount", "service"), spent(), before)}}
            print(f"round {len(rounds)}: {name}: {rate:.0f} MiB/s", file=sys.stderr, flush=True)

        def in_random_order(cases):
            for name in random.sample(list(cases), len(cases)):
                if name == "s5cmd get":
                    target.mkdir()
                timed(name, cases[name]())
                if target.exists():
                    command("diff", "-r", source, target)
                    shutil.rmtree(target)

        for number in range(args.rounds):
            rounds.append({})
            series = f"round{number}"
            url = f"s3://tests/{series}"
            in_random_order({"curl put": lambda: curl_words(s3, base, args, "put_object", series,
                                                              **{"upload-file": part}),
                             "push": lambda: [args.program, "push", source, url],
                             **({"s5cmd put": lambda: [s5cmd, "cp", f"{source}/", f"{url}-s5cmd/"]} if s5cmd else {})})
            in_random_order({"curl get": lambda: curl_words(s3, base, args, "get_object", series),
                             "pull": lambda: [args.program, "pull", url, target],
                             **({"s5cmd get": lambda: [s5cmd, "cp", f"{url}-s5cmd/*", f"{target}/"]} if s5cmd else {})})
            for page in s3.get_paginator("list_objects_v2").paginate(Bucket="tests"):
                keys = [{"Key": entry["Key"]} for entry in page["Contents"]]
                s3.delete_objects(Bucket="tests", Delete={"Objects": keys})
    cases = {name: {figure: statistics.median(one[name][figure] for one in rounds) for figure in rounds[0][name]}
             for name in rounds[0]}
    ratios = {f"{ours} / {other}": ratio(*([one[name]["MiB/s"] for one in rounds] for name in (ours, other)), "MiB/s")
              for ours, do in (("push", "put"), ("pull", "get")) for other in (f"curl {do}", f"s5cmd {do}")
              if other in rounds[0]}
    return {"cases": cases, "ratios": ratios}


@contextlib.contextmanager
def again_and_again(start):
    """Runs the processes that start() starts, one after the other, until the end of the block."""
    failures, stop = [], threading.Event()

    def repeat():
        while not stop.is_set() and not failures:
            with start() as running:
                while running.poll() is None and not stop.wait(0.01):
                    pass
                failures.extend([running.returncode] * bool(running.returncode))
                running.terminate()

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    if failures:
        raise RuntimeError(f"a push failed: exit {failures[0]}")


def saves_of(directory):
    """Returns a function that saves 512 MiB for some seconds, to three files in turn, and returns the median."""
    import torch
    state = {"weights": torch.randn(128 * MIB)}

    def save(number):
        start = time.monotonic()
        torch.save(state, directory / f"save{number % 3}")
        sync_file(directory / f"save{number % 3}")
        return time.monotonic() - start

    def median():
        times, end = [], time.monotonic() + TIMED_SAVES_S
        while time.monotonic() < end:
            times.append(save(len(times)))
        return statistics.median(times)

    for number in range(4):   # the locations in the pool, and the memory
        save(number)
    return median


def measure_saves(args, base):
    total, versions = args.size * args.files, itertools.count(1)

    def push(rate):
        """Starts one of the directory, as another version."""
        words = [args.program, "push", source, f"s3://tests/{next(versions)}"]
        return subprocess.Popen(words + ([] if rate == "max" else ["--rate", rate]), env=environment,
                                stdout=subprocess.DEVNULL)

    def beside(rate):
        with again_and_again(lambda: push(rate)) if rate else contextlib.nullcontext():
            time.sleep(0.3)   # until the first part is sent
            return save()

    with contextlib.ExitStack() as stack:
        environment = clean_environment(stack.enter_context(S3Sink()).environment())
        mount = Path(stack.enter_context(Store(args.program, base / "store", total + 4 * GIB)).mount)
        source = write_files(mount / "source", args.files, args.size)
        start = time.monotonic()
        if push("max").wait():
            raise RuntimeError("the push failed")
        alone = total / MIB / (time.monotonic() - start)
        save, values = saves_of(mount), {rate: [] for rate in (None, *args.beside)}
        measure(values, args.rounds, beside)
    return {"push alone, MiB/s": alone,
            "seconds of a save": {rate or "no push": statistics.median(each) for rate, each in values.items()},
            "ratios": {rate: ratio(values[None], values[rate]) for rate in args.beside}}


def size_of_files(text):
    if size(text) % (64 * MIB):
        raise argparse.ArgumentTypeError(f"{text!r} is no multiple of 64M, like 512M or 2G")
    return size(text)


def main():
    parser = Parser(prog="transfers", description=__doc__)
    parser.add_argument("directory", type=directory, help="where the temporary store is created")
    parser.add_argument("--program", type=os.path.abspath, default=ROOT / "build/release/bin/weightfs",
                        help="the program weightfs")
    parser.add_argument("--size", type=size_of_files, default="1G", help="of one file (1G)")
    parser.add_argument("--files", type=number_from(1), default=2, help="number of files (2)")
    parser.add_argument("--rounds", type=number_from(1), default=3, help="(3)")
    parser.add_argument("--beside", nargs="+", metavar="RATE", help="measure saves beside a push at these rates; "
                        "max: without a limit")
    args = parser.parse_args()
    if not args.beside and (reason := missing_programs()):
        parser.error(reason)
    with tempfile.TemporaryDirectory(prefix="transfers-", dir=args.directory) as base:
        result = (measure_saves if args.beside else measure_transfers)(args, Path(base))
    print(json.dumps({"arguments": vars(args), **result}, indent=2, default=str))


if __name__ == "__main__":
    main()
