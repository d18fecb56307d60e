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
import json
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from harness.radosgw import Radosgw, missing_programs  # noqa: E402
from harness.s3_probe import clean_environment  # noqa: E402
from harness.s3_sink import S3Sink  # noqa: E402

from temporary_store import new_store  # noqa: E402

MIB, GIB = 1 << 20, 1 << 30
PART = 16 * MIB
CONNECTIONS = 16
TIMED_SAVES_S = 6


def processor_seconds(pids):
    total = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def write_files(directory, files, size):
    directory.mkdir()
    block = random.randbytes(min(size, 64 * MIB))
    for number in range(files):
        with open(directory / f"file{number}", "wb") as file:
            for _ in range(size // len(block)):
                file.write(block)
    return directory


class Timer:
    """Runs programs, and collects their rate and processor time."""

    def __init__(self, size, environment, mount_pid, service_pids):
        self.size, self.environment = size, environment
        self.mount_pid, self.service_pids = mount_pid, service_pids
        self.rounds = []

    def __call__(self, name, words):
        before, mount, service = self.children(), processor_seconds([self.mount_pid]), self.service()
        start = time.monotonic()
        done = subprocess.run(words, env=self.environment, capture_output=True, text=True, check=False)
        seconds = time.monotonic() - start
        if done.returncode:
            raise RuntimeError(f"{name}: exit {done.returncode}: {done.stderr[-500:]}")
        self.rounds[-1][name] = {
            "MiB/s": self.size / MIB / seconds,
            "client s/GiB": (self.children() - before) * GIB / self.size,
            "mount s/GiB": (processor_seconds([self.mount_pid]) - mount) * GIB / self.size,
            "service s/GiB": (self.service() - service) * GIB / self.size}
        print(f"round {len(self.rounds)}: {name}: {self.size / MIB / seconds:.0f} MiB/s", file=sys.stderr, flush=True)

    @staticmethod
    def children():
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    def service(self):
        return processor_seconds(self.service_pids)


class Curl:
    """Requests that boto3 signs and curl sends, in parts of the same size."""

    def __init__(self, s3, base, files, size):
        self.s3, self.base, self.files, self.size = s3, base, files, size
        self.part = base / "part"
        self.part.write_bytes(random.randbytes(PART))

    def words(self, entries):
        config = self.base / "curl.config"
        config.write_text("next\n".join("".join(f'{name} = "{value}"\n' for name, value in entry.items())
                                        for entry in entries), encoding="utf-8")
        return ["curl", "--silent", "--show-error", "--fail-early", "--parallel", "--parallel-max", str(CONNECTIONS),
                "--config", config]

    def put(self, time_it, series):
        uploads, entries = {}, []
        for number in range(self.files):
            name = {"Bucket": "tests", "Key": f"{series}/file{number}"}
            uploads[number] = {**name, "UploadId": self.s3.create_multipart_upload(**name)["UploadId"]}
            for part in range(1, self.size // PART + 1):
                url = self.s3.generate_presigned_url("upload_part", {**uploads[number], "PartNumber": part})
                entries.append({"url": url, "upload-file": self.part, "output": "/dev/null"})
        time_it("curl put", self.words(entries))
        for upload in uploads.values():
            parts = [{"ETag": part["ETag"], "PartNumber": part["PartNumber"]}
                     for page in self.s3.get_paginator("list_parts").paginate(**upload) for part in page["Parts"]]
            self.s3.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts})

    def get(self, time_it, series):
        entries = []
        for number in range(self.files):
            url = self.s3.generate_presigned_url("get_object", {"Bucket": "tests", "Key": f"{series}/file{number}"})
            entries += [{"url": url, "range": f"{start}-{start + PART - 1}", "output": "/dev/null"}
                        for start in range(0, self.size, PART)]
        time_it("curl get", self.words(entries))


class Transfers:
    """The cases of one service: each takes the name of the round."""

    def __init__(self, program, gateway, time_it, base, mount, files, size):
        import boto3
        import botocore.config
        environment = gateway.environment()
        self.s3 = boto3.client("s3", endpoint_url=gateway.url, region_name="us-east-1",
                               aws_access_key_id=environment["AWS_ACCESS_KEY_ID"],
                               aws_secret_access_key=environment["AWS_SECRET_ACCESS_KEY"],
                               config=botocore.config.Config(proxies={}, s3={"addressing_style": "path"}))
        self.s3.create_bucket(Bucket="tests")
        self.program, self.time_it = program, time_it
        self.source, self.target = write_files(mount / "source", files, size), mount / "target"
        self.curl = Curl(self.s3, base, files, size)
        self.s5cmd = shutil.which("s5cmd", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")

    def puts(self):
        return [self.curl_put, self.push] + ([self.s5cmd_put] if self.s5cmd else [])

    def gets(self):
        return [self.curl_get, self.pull] + ([self.s5cmd_get] if self.s5cmd else [])

    def curl_put(self, name):
        self.curl.put(self.time_it, f"{name}-curl")

    def push(self, name):
        self.time_it("push", [self.program, "push", self.source, f"s3://tests/{name}"])

    def s5cmd_put(self, name):
        self.time_it("s5cmd put", [self.s5cmd, "cp", f"{self.source}/", f"s3://tests/{name}-s5cmd/"])

    def curl_get(self, name):
        self.curl.get(self.time_it, f"{name}-curl")

    def pull(self, name):
        self.time_it("pull", [self.program, "pull", f"s3://tests/{name}", self.target])
        self.compare()

    def s5cmd_get(self, name):
        self.target.mkdir()
        self.time_it("s5cmd get", [self.s5cmd, "cp", f"s3://tests/{name}-s5cmd/*", f"{self.target}/"])
        self.compare()

    def compare(self):
        subprocess.run(["diff", "-r", self.source, self.target], check=True)
        shutil.rmtree(self.target)

    def remove_objects(self):
        for page in self.s3.get_paginator("list_objects_v2").paginate(Bucket="tests"):
            self.s3.delete_objects(Bucket="tests",
                                   Delete={"Objects": [{"Key": entry["Key"]} for entry in page["Contents"]]})


def measure_transfers(args, base):
    total = args.size * args.files
    with contextlib.ExitStack() as stack:
        # Ceph collects deleted objects late, so the memory has room for two rounds.
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="wfs-gw-", dir="/tmp"))
        gateway = stack.enter_context(Radosgw(Path(directory) / "g", size=6 * total + 2 * GIB))
        mount, pid = stack.enter_context(new_store(args.program, base, total * 2 + GIB))
        environment = clean_environment({**gateway.environment(), "S3_ENDPOINT_URL": gateway.url})
        time_it = Timer(total, environment, pid, [process.pid for process in gateway.processes.values()])
        transfers = Transfers(args.program, gateway, time_it, base, mount, args.files, args.size)
        for number in range(args.rounds):
            time_it.rounds.append({})
            for cases in (transfers.puts(), transfers.gets()):
                for case in random.sample(cases, len(cases)):
                    case(f"round{number}")
            transfers.remove_objects()
    rounds = time_it.rounds
    cases = {name: {figure: statistics.median(one[name][figure] for one in rounds) for figure in rounds[0][name]}
             for name in rounds[0]}
    ratios = {f"{ours} / {other}": statistics.median(one[ours]["MiB/s"] / one[other]["MiB/s"] for one in rounds)
              for ours, others in (("push", ("curl put", "s5cmd put")), ("pull", ("curl get", "s5cmd get")))
              for other in others if other in rounds[0]}
    return {"cases": cases, "ratios": ratios}


class Pushes:
    """Pushes of one directory, each as another version."""

    def __init__(self, program, source, environment):
        self.program, self.source, self.environment = program, source, environment
        self.numbers = iter(range(1, 1 << 30))

    def start(self, rate):
        words = [self.program, "push", self.source, f"s3://tests/{next(self.numbers)}"]
        return subprocess.Popen(words + ([] if rate == "max" else ["--rate", rate]), env=self.environment,
                                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    @contextlib.contextmanager
    def again_and_again(self, rate):
        failures, stop = [], threading.Event()

        def repeat():
            while not stop.is_set():
                with self.start(rate) as running:
                    while running.poll() is None and not stop.wait(0.01):
                        pass
                    if running.returncode:
                        failures.append(running.returncode)
                        return
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


class Saves:
    """Saves of 512 MiB, to three files in turn."""

    def __init__(self, directory):
        import torch
        self.torch, self.directory = torch, directory
        self.state = {"weights": torch.randn(128 * MIB)}
        self.number = 0
        for _ in range(4):   # the locations in the pool, and the memory
            self.save()

    def save(self):
        """Returns the seconds that it took."""
        self.number += 1
        start = time.monotonic()
        with open(self.directory / f"save{self.number % 3}", "wb") as file:
            self.torch.save(self.state, file)
            file.flush()
            os.fsync(file.fileno())
        return time.monotonic() - start

    def median(self):
        times, end = [], time.monotonic() + TIMED_SAVES_S
        while time.monotonic() < end:
            times.append(self.save())
        return statistics.median(times)


def measure_saves(args, base):
    total = args.size * args.files
    with contextlib.ExitStack() as stack:
        sink = stack.enter_context(S3Sink())
        mount, _ = stack.enter_context(new_store(args.program, base, total + 4 * GIB))
        pushes = Pushes(args.program, write_files(mount / "source", args.files, args.size),
                        clean_environment(sink.environment()))
        start = time.monotonic()
        if pushes.start("max").wait():
            raise RuntimeError("the push failed")
        alone = total / MIB / (time.monotonic() - start)
        saves = Saves(mount)
        rates, rounds = ["no push", *args.beside], []
        for _ in range(args.rounds):
            rounds.append({})
            for rate in random.sample(rates, len(rates)):
                with pushes.again_and_again(rate) if rate != "no push" else contextlib.nullcontext():
                    time.sleep(0.3)   # until the first part is sent
                    rounds[-1][rate] = saves.median()
    return {"push alone, MiB/s": alone,
            "seconds of a save": {rate: statistics.median(one[rate] for one in rounds) for rate in rates},
            "ratios": {rate: statistics.median(one[rate] / one["no push"] for one in rounds) for rate in args.beside}}


def size_of(text):
    factor = {"M": MIB, "G": GIB}.get(text[-1:])
    if factor is None or not text[:-1].isdigit() or not int(text[:-1]) or int(text[:-1]) * factor % (64 * MIB):
        raise argparse.ArgumentTypeError(f"{text!r} is no size like 512M or 2G, a multiple of 64M")
    return int(text[:-1]) * factor


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, help="where the temporary store is created")
    parser.add_argument("--program", type=Path, default=ROOT / "build/release/bin/weightfs", help="the program weightfs")
    parser.add_argument("--size", type=size_of, default="1G", help="of one file (1G)")
    parser.add_argument("--files", type=int, default=2, help="number of files (2)")
    parser.add_argument("--rounds", type=int, default=3, help="(3)")
    parser.add_argument("--beside", nargs="+", metavar="RATE", help="measure saves beside a push at these rates; "
                        "max: without a limit")
    args = parser.parse_args()
    args.program = args.program.absolute()
    if not args.beside and (reason := missing_programs()):
        parser.error(reason)
    if args.files < 1 or args.rounds < 1:
        parser.error("--files and --rounds are at least 1")
    with tempfile.TemporaryDirectory(prefix="transfers-", dir=args.directory) as base:
        result = (measure_saves if args.beside else measure_transfers)(args, Path(base))
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
