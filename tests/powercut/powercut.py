# SPDX-License-Identifier: Apache-2.0
"""Cuts the power of a virtual machine that works on a store, and checks what is left.

The machine is Linux in user mode (Debian's user-mode-linux). All its storage is one device of the device mapper's
target log-writes, which records every write and flush in order. An image of a power cut consists of everything that was
flushed before some point of that record, and a random subset of the writes after the last flush, some of them torn.
Each image is mounted by this machine and compared with what the workload had been acknowledged.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import log_writes  # noqa: E402
import workload  # noqa: E402

HERE = Path(__file__).resolve().parent
MIB = 1 << 20
# The paths of the devices, equal in the virtual machine and here because the store records them.
DEVICES = Path("/run/weightfs-powercut")
GUEST_SECONDS = 600
RECOVERY_CUTS = 3        # of each recovery that is cut too
RECOVERY_OPERATIONS = 4
TORN = 0.1               # the share of unflushed writes that are torn


@dataclasses.dataclass(frozen=True)
class Layout:
    """Where the parts of a store are on the device: bytes from its start, and the length."""

    parts: dict
    format: list


LAYOUTS = {
    "file": Layout({"catalog": (0, 384 * MIB)}, ["--size", "128M"]),
    "raw": Layout({"catalog": (0, 192 * MIB), "pool0": (192 * MIB, 128 * MIB)}, ["--device", f"{DEVICES}/pool0"]),
    "two": Layout({"catalog": (0, 192 * MIB), "pool0": (192 * MIB, 96 * MIB), "pool1": (288 * MIB, 96 * MIB)},
                  ["--device", f"{DEVICES}/pool0", "--device", f"{DEVICES}/pool1"]),
}


class Failure(Exception):
    """Something other than the store went wrong; the message is a full line."""


def run(*words, codes=(0,), **options):
    done = subprocess.run([str(word) for word in words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          check=False, **options)
    if codes is not None and done.returncode not in codes:
        raise Failure(f"{' '.join(str(word) for word in words)}: status {done.returncode}: {done.stdout.strip()[-500:]}")
    return done


def build_library(work, source):
    library = work / (Path(source).stem + ".so")
    run("cc", "-O1", "-shared", "-fPIC", "-o", library, HERE / source)
    return library


@dataclasses.dataclass
class History:
    """What the marks before a cut tell: operations 0 … begun-1 began, and the uncertain ones did not end."""

    begun: int = 0
    uncertain: frozenset = frozenset()

    def after(self, entries):
        begun, uncertain = self.begun, set(self.uncertain)
        for entry in entries:
            if entry.mark:
                word, number = entry.mark.split("-")
                if word == "begin":
                    begun = int(number) + 1
                    uncertain.add(int(number))
                else:
                    uncertain.discard(int(number))
        return History(begun, frozenset(uncertain))


class Bench:
    """Runs virtual machines and checks images, in one temporary directory."""

    def __init__(self, options, layout, work):
        self.options, self.work = options, work
        self.layout = LAYOUTS[layout]
        self.size = sum(length for _, length in self.layout.parts.values())
        self.registers = build_library(work, "full_registers.c")
        self.no_sync = build_library(work, "no_sync.c") if options.control else None
        self.random = random.Random(f"{options.seed}/{layout}")

    def new_device(self):
        device = self.work / "base"
        with open(device, "wb") as stream:
            stream.truncate(self.size)
        blocks = self.layout.parts["catalog"][1] // 4096
        run("mkfs.ext4", "-q", "-b", "4096", "-m", "0", device, blocks)
        return device

    def copy(self, device, name):
        run("cp", "--sparse=always", device, self.work / name)
        return self.work / name

    def run_guest(self, device, first, operations, fresh):
        """Works on a copy of the device in a virtual machine. Returns the path of the log."""
        log = self.work / "log"
        with open(log, "wb") as stream:
            stream.truncate(4 << 30)
        worked = self.copy(device, "worked")
        settings = self.work / "settings.json"
        settings.write_text(json.dumps({
            "size": self.size, "parts": self.layout.parts, "devices": str(DEVICES), "seed": self.options.seed,
            "catalog": str(self.work / "catalog"), "store": str(self.work / "catalog/store"),
            "mount": str(self.work / "mount"), "program": self.options.program, "first": first,
            "operations": operations, "format": self.layout.format if fresh else [],
            "preload": str(self.no_sync) if self.no_sync else ""}), encoding="utf-8")
        init = self.work / "init"
        init.write_text(f"#!/bin/sh\nexec {sys.executable} {HERE / 'guest.py'} {settings}\n", encoding="utf-8")
        init.chmod(0o755)
        # Its processes need the directories of the mounts, which are empty here.
        for name in ("catalog", "mount"):
            (self.work / name).mkdir(exist_ok=True)
        environment = {**os.environ, "LD_PRELOAD": str(self.registers), "TMPDIR": str(self.work)}
        done = run("linux.uml", "mem=768M", "root=/dev/root", "rootfstype=hostfs", "rootflags=/", "rw", "quiet",
                   f"init={init}", f"ubd0={worked}", f"ubd1={log}", "con=null", "con0=null,fd:1", codes=None,
                   env=environment, timeout=GUEST_SECONDS, stdin=subprocess.DEVNULL)
        if "guest: done" not in done.stdout:
            raise Failure(f"the virtual machine did not finish: {done.stdout.strip()[-1500:]}")
        return log

    def cut(self, image, entries, at, name):
        """Makes the image of a power cut before entry `at`. `image` is brought forward to the last flush."""
        start, loose = log_writes.unflushed(entries, at)
        for entry in entries[image.applied:start]:
            image.apply(entry)
        image.applied = max(image.applied, start)
        path = self.copy(image.path, name)
        result = log_writes.Image(path, image.log_path)
        kept = self.random.random()
        # ext4 does not mount with half of its superblock, which disks write as one.
        superblock = self.layout.parts["catalog"][0]
        for index in range(start, at):
            entry = entries[index]
            if index not in loose:
                result.apply(entry)
            elif self.random.random() < kept:
                torn = self.random.random() < TORN and entry.length > log_writes.SECTOR and entry.offset != superblock
                sectors = self.random.randrange(entry.length // log_writes.SECTOR) if torn else None
                result.apply(entry, None if sectors is None else sectors * log_writes.SECTOR)
        result.close()
        return path

    def open_image(self, device, log):
        image = log_writes.Image(device, log)
        image.applied, image.log_path = 0, log
        return image

    @contextlib.contextmanager
    def attached(self, device):
        """Makes the parts of an image devices of this machine, with the catalog's filesystem mounted."""
        with contextlib.ExitStack() as stack:
            DEVICES.mkdir(exist_ok=True)
            stack.callback(self.wait_until_detached, device)
            for name, (start, length) in self.layout.parts.items():
                loop = run("losetup", "--find", "--show", "--offset", start, "--sizelimit", length,
                           device).stdout.strip()
                stack.callback(run, "losetup", "--detach", loop, codes=None)
                if name == "catalog":
                    run("mount", "-t", "ext4", loop, self.work / "catalog")
                    stack.callback(run, "umount", "--lazy", self.work / "catalog", codes=None)
                else:
                    link = DEVICES / name
                    link.unlink(missing_ok=True)
                    link.symlink_to(loop)
            yield self.work / "catalog/store"

    @staticmethod
    def wait_until_detached(device):
        """Another process may have a copy of the mount for a moment, in a namespace of its own. Until it is gone, the
        filesystem may write to the image, which the next cut would overwrite."""
        deadline = time.monotonic() + GUEST_SECONDS
        while run("losetup", "--associated", device).stdout.strip():
            if time.monotonic() > deadline:
                raise Failure(f"{device} is still a loop device")
            time.sleep(0.05)

    def check(self, device, history):
        """Returns the violations in an image, as texts."""
        program, point = self.options.program, self.work / "mount"
        with self.attached(device) as store:
            mounted = run(program, "mount", store, point, "-o", "memory=112M", codes=None)
            if mounted.returncode != 0:
                return [f"the store cannot be mounted: {mounted.stdout.strip()}"]
            try:
                wrong = workload.Expectation(self.options.seed, history.begun, history.uncertain).check(point)
            finally:
                run(program, "umount", point)
            checked = run(program, "verify", store, codes=None)
            return wrong + ([] if checked.returncode == 0 else [f"fsck: {checked.stdout.strip()[-500:]}"])


class Meter:
    """Counts the cuts, and prints a line for each on a terminal, or a line for each tenth."""

    def __init__(self, total):
        self.total, self.done, self.wrong, self.start = total, 0, 0, time.monotonic()

    def add(self, what, wrong):
        self.done += 1
        self.wrong += bool(wrong)
        left = (time.monotonic() - self.start) / self.done * (self.total - self.done)
        if sys.stdout.isatty():
            print(f"\r{self.done} of {self.total} cuts, {self.wrong} with losses; about {left / 60:.1f} min left ",
                  end="", flush=True)
        elif self.done % max(1, self.total // 10) == 0:
            print(f"{self.done} of {self.total} cuts, {self.wrong} with losses; about {left / 60:.1f} min left",
                  flush=True)
        for text in wrong[:3]:
            print(f"\n{what}: {text}", flush=True)


def run_layout(options, layout, work, meter):
    bench = Bench(options, layout, work)
    base = bench.new_device()
    log = shutil.move(bench.run_guest(base, 0, options.operations, True), work / "first-log")
    entries = log_writes.read_log(log)
    first = next(i for i, entry in enumerate(entries) if entry.mark == "begin-0")
    image = bench.open_image(base, log)
    cuts = sorted(bench.random.randrange(first + 1, len(entries) + 1) for _ in range(options.cuts))
    for index, at in enumerate(cuts):
        history = History().after(entries[:at])
        cut = bench.cut(image, entries, at, "cut")
        again = bench.copy(cut, "again") if index % 5 == 4 and not options.control else None
        report(options, meter, f"{layout}, cut before entry {at} of {len(entries)}", cut, bench.check(cut, history))
        if again is not None:
            cut_recovery(bench, meter, layout, again, history)
    image.close()


def cut_recovery(bench, meter, layout, device, history):
    """Cuts the power once more, while the machine recovers from the first cut and continues."""
    options = bench.options
    log = bench.run_guest(device, history.begun, RECOVERY_OPERATIONS, False)
    entries = log_writes.read_log(log)
    image = bench.open_image(device, log)
    recovered = next(i for i, entry in enumerate(entries) if entry.mark)
    # Most of them before the machine continues.
    ends = [recovered] * (RECOVERY_CUTS - 1) + [len(entries)]
    for at in sorted(bench.random.randrange(1, end + 1) for end in ends):
        cut = bench.cut(image, entries, at, "cut")
        report(options, meter, f"{layout}, a second cut before entry {at} of {len(entries)}", cut,
               bench.check(cut, history.after(entries[:at])))
    image.close()


def report(options, meter, what, image, wrong):
    meter.add(what, wrong)
    if wrong and options.keep:
        kept = Path(options.keep) / f"cut-{meter.done}"
        shutil.copy(image, kept)
        print(f"the image is kept as {kept}", flush=True)


def parse_arguments():
    parser = argparse.ArgumentParser(prog="powercut")
    parser.add_argument("--program", required=True)
    parser.add_argument("--layout", action="append", choices=sorted(LAYOUTS))
    parser.add_argument("--cuts", type=int, default=30)
    parser.add_argument("--operations", type=int, default=40)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--control", action="store_true")
    parser.add_argument("--keep")
    return parser.parse_args()


def main():
    options = parse_arguments()
    layouts = options.layout or list(LAYOUTS)
    second = 0 if options.control else options.cuts // 5 * RECOVERY_CUTS
    meter = Meter(len(layouts) * (options.cuts + second))
    try:
        for layout in layouts:
            with tempfile.TemporaryDirectory(prefix="weightfs-powercut-", dir="/var/tmp") as work:
                run_layout(options, layout, Path(work), meter)
    except (Failure, subprocess.TimeoutExpired) as failure:
        sys.exit(f"powercut: {failure}")
    finally:
        shutil.rmtree(DEVICES, ignore_errors=True)
    print(f"\n{meter.done} power cuts, {meter.wrong} with losses (seed {options.seed})")
    if options.control:
        print("the control without syncs was noticed" if meter.wrong else "the control without syncs was NOT noticed")
        return 0 if meter.wrong else 1
    return 1 if meter.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
