# SPDX-License-Identifier: Apache-2.0
"""One run of `weightfs bench`: its environment, and the rounds of its rows."""

import contextlib
import json
import os
import random
import shutil
import signal
import stat
import time

from . import cases, machine, verdict
from .machine import GIB, MIB, kernel_figure
from .options import command_of
from .program import Client, Failure, command
from .rows import ROWS, is_selected
from .store import Directory, Store, daemon_of, scratch_directory

VERSION = 1   # of the format of --json
KEPT = ("big", "raw")   # files that several groups use


class Run:
    """The environment of the cases. Everything it creates is removed when `stack` is closed."""

    def __init__(self, options, stack, progress):
        self.options, self.stack, self.progress = options, stack, progress
        self.results, self.worker, self.clients = verdict.Results(), None, []
        self.memory, self.raw_job = None, None
        # progress: parts per phase; the current phase; its completed fraction
        self.phases, self.phase, self.done = {}, None, 0
        self.has_own_store = not options.store

    def prepare(self):
        options = self.options
        self.host_root = options.host or (options.directory if self.has_own_store else os.path.dirname(options.store))
        self.in_memory = machine.mount_of(self.host_root)[0] == "tmpfs"
        self.size = self.choose_size()
        self.worker = Client(options.program, "bench-worker")
        self.show("warming the memory")
        self.worker.ask("prepare", bytes=self.size, warm=not options.quick)
        self.base = self.stack.enter_context(scratch_directory(self.host_root))
        self.host = Directory(self.worker, f"{self.base}/host", None, self.drop_caches)
        os.mkdir(self.host.path)
        if self.has_own_store:
            self.show("making a store")
            # A virtual disk may write a location without data far more slowly.
            made = self.make_store("main", 4 * self.size + self.beside, fill="auto" if options.quick else "data")
            self.store, self.weightfs = made.store, self.on(made)
        else:
            self.store, path = options.store, self.stack.enter_context(scratch_directory(options.directory))
            self.weightfs = Directory(self.worker, path, daemon_of(self.described().get("index", self.store)),
                                      self.drop_caches)
        self.inspect_pool()

    # The additional space that a run needs, besides four times the large file (itself, what the libraries of a group
    # load in two formats, and what one of them saves): for the small files and the store itself.
    @property
    def beside(self):
        return 576 * MIB if self.options.quick else GIB

    def choose_size(self):
        memory, free, size = kernel_figure("MemAvailable"), shutil.disk_usage(self.host_root).free, self.options.size
        if self.in_memory:
            free = min(free, memory)
        if not size:
            # In memory: our two buffers, the states of the four libraries of a group, and what one of them loads.
            most = min(2 * GIB, memory // 7, max(free - 2 * self.beside, 0) // 17)
            size = max(min(most, 256 * MIB) if self.options.quick else most, 64 * MIB)
            size = 1 << (size.bit_length() - 1)
        # The pool, five files on the host, and the store of the second mount; if the host's filesystem is in memory,
        # also our own buffers.
        needed = (17 if self.in_memory else 10) * size + 2 * self.beside
        if free < needed:
            raise Failure(f"{self.host_root}: {free // MIB} MiB free, and a run with --size {size // MIB}M needs about "
                          f"{needed // MIB}; give a smaller --size, or another directory")
        return size

    def make_store(self, name, size, options="", fill="auto"):
        options = ",".join(filter(None, (self.options.mount_options, options)))
        return self.stack.enter_context(Store(self.options.program, f"{self.base}/{name}", size, fill, options,
                                              before_failure=self.end_processes))

    def on(self, store):
        return Directory(self.worker, store.mount, store.daemon, self.drop_caches)

    def described(self):
        return json.loads(command(self.options.program, "info", self.store, "--json"))

    def inspect_pool(self):
        """If the pool is a block device, the reference reads the same blocks of it as the large file occupies."""
        paths = [os.path.join(self.store, device["path"]) for device in self.described()["devices"]]
        self.pool_device = self.no_raw_reads = self.no_raw_writes = ""
        if not any(stat.S_ISBLK(os.stat(path).st_mode) for path in paths):
            return
        self.no_raw_writes = "the pool is a block device, and writing to it would destroy the store"
        if len(paths) > 1:
            self.no_raw_reads = "the pool has several devices; the reference knows one"
        elif not os.access(paths[0], os.R_OK):
            self.no_raw_reads = f"{paths[0]}: may not be read: Permission denied"
        else:
            self.pool_device, self.in_memory = paths[0], False

    def make_large_file_cold(self, directory):
        """Returns the path of the directory's large file, which is written first if it is missing."""
        path = directory.file("big")
        if not os.path.exists(path) or os.path.getsize(path) != self.size:
            self.show("writing the big file")
            self.worker.ask("write", path=path)
        directory.make_cold(path)
        return path

    def raw(self):
        """The job of fio on the disk alone: the reference's file, or the blocks of the large file on the device."""
        if self.raw_job is None and not self.pool_device:
            path = self.host.file("raw")
            self.show("writing the reference's file")
            with open(path, "wb") as stream:
                os.posix_fallocate(stream.fileno(), 0, self.size)
            cases.fio(path, "write", self.size, depth=32, direct=not self.in_memory)
            self.raw_job = {"path": path}
        elif self.raw_job is None:
            described = command(self.options.program, "info", self.make_large_file_cold(self.weightfs), "--json")
            extent = max(json.loads(described)["extents"], key=lambda extent: extent["length"])
            self.raw_job = {"path": self.pool_device, "offset": extent["physical"],
                            "size": extent["length"] // MIB * MIB}
        return self.raw_job

    def memory_directory(self):
        if self.memory is None:
            path = self.stack.enter_context(scratch_directory("/dev/shm", "weightfs-bench-memory"))
            self.memory = Directory(self.worker, path, None, self.drop_caches)
        return self.memory

    def drop_caches(self):
        if self.options.drop_caches:
            machine.write_text("/proc/sys/vm/drop_caches", "3")

    def end_clients(self):
        while self.clients:
            self.clients.pop().end()

    def end_processes(self):
        self.end_clients()
        if self.worker:
            self.worker.end()

    def end_group(self):
        """Removes what a group of rows has created."""
        self.end_clients()
        for directory in filter(None, (self.weightfs, self.host, self.memory)):
            directory.remove(*(name for name in os.listdir(directory.path) if name not in KEPT))

    # Rows

    def is_needed(self, name):
        """True if the row, or a row that uses it as its reference, is selected."""
        return any(name in (row["id"], row.get("reference")) and is_selected(row, self.options.only) for row in ROWS)

    def not_measured(self, group, why):
        for row in ROWS:
            if row["group"] == group:
                self.results.not_measured(row["id"], "weightfs", why)

    # Progress: phases, each with a number of parts

    def plan(self):
        self.phases = {name: sum(self.is_needed(row["id"]) for row in ROWS if row["group"] == name)
                       for name, *_ in cases.GROUPS}

    def start_phase(self, name):
        self.phase, self.done = name, 0

    def show(self, step, done=None):
        """Shows the current step and the completed fraction of the phase; without `done` the fraction is unchanged."""
        self.done = self.done if done is None else done
        names = list(self.phases)
        before = sum(self.phases[name] for name in names[:names.index(self.phase)]) if self.phase else 0
        self.progress(step, (before + self.phases.get(self.phase, 0) * self.done) / (sum(self.phases.values()) or 1))


def measure(run, case, step, turn):
    step.before(turn)
    counters, cpu, begin = case.directory.counters(), case.directory.cpu_seconds(), time.monotonic()
    answer = step.work(turn)
    seconds = answer.get("seconds") or time.monotonic() - begin
    sample = {"rate": answer.get("rate") or answer["amount"] / seconds, "seconds": seconds, "bytes": answer["bytes"],
              "client_cpu_seconds": answer["cpu"], "daemon_cpu_seconds": case.directory.cpu_seconds() - cpu}
    if "device_read_bytes" in counters:
        sample["device_read_bytes"] = case.directory.counters()["device_read_bytes"] - counters["device_read_bytes"]
    step.after(turn)
    if not turn.warm_up:
        run.results.add(step.row, case.way, sample)


def run_group(run, chance, name, prepare):
    if not run.phases[name]:
        return
    run.start_phase(name)
    run.show(f"{name}: preparing")
    needed = [case for case in prepare(run) if any(run.is_needed(step.row) for step in case.steps)]
    rounds = run.options.rounds
    for turn, at, case in verdict.in_turns(needed, rounds, chance):
        title = f"round {turn} of {rounds}" if turn else "warming up"
        run.show(f"{name}: {title}, {case.steps[0].row}", (turn * len(needed) + at) / (rounds + 1) / len(needed))
        for step in case.steps:
            try:
                measure(run, case, step, cases.Turn(turn == 0, chance.getrandbits(64)))
            except (Failure, OSError) as error:
                raise Failure(f"{step.row}, {case.way}: {error}") from error
    run.end_group()


def idle_cpu(run):
    """The daemon's CPU time while it has no requests, in seconds per second."""
    time.sleep(0.2 if run.options.quick else 1.5)   # let pending commits finish first
    before, begin = run.weightfs.cpu_seconds(), time.monotonic()
    time.sleep(0.2 if run.options.quick else 2)
    return (run.weightfs.cpu_seconds() - before) / (time.monotonic() - begin)


def measure_all(run):
    times, options, daemon = machine.processor_times(), run.options, run.weightfs.daemon
    chance = random.Random(options.seed)
    with contextlib.suppress(OSError):   # without the permission, the peak of its memory is that since its start
        machine.write_text(f"/proc/{daemon}/clear_refs", "5")
    run.plan()
    for group in cases.GROUPS:
        run_group(run, chance, *group)
    run.show("idle")
    idle, capacity = idle_cpu(run), run.weightfs.counters().get("buffer_capacity", 0)
    found = {"weightfs": command(options.program, "--version").split()[1], **machine.facts(run.host.path),
             "store": options.store or "made for this run", "mount options": options.mount_options or "defaults",
             "size of the file": machine.size_text(run.size), "run": command_of(options, run.size)}
    total, stolen = (now - then for now, then in zip(machine.processor_times(), times))
    noise = {**verdict.noise_of(run.results), "load_average": os.getloadavg()[0], "steal": stolen / max(total, 1)}
    return {"version": VERSION, "program": "weightfs bench", "facts": found, "seed": options.seed,
            "size_bytes": run.size, "rounds": options.rounds, "in_memory": run.in_memory, "noise": noise,
            "daemon": {"idle_cpu": idle, "memory_limit_bytes": capacity and capacity + 64 * MIB,
                       "memory_peak_bytes": kernel_figure("VmHWM", daemon),
                       "memory_now_bytes": kernel_figure("VmRSS", daemon)},
            "rows": [verdict.judge(row, run.results, run.in_memory, run.size) for row in ROWS
                     if is_selected(row, options.only)],
            "summary": ["read-1m", "write-1m", "torch-load", "torch-save"]}


def run_suite(options, progress):
    """Returns the result for --json. Raises Failure if the run is not possible, if something fails, or if bytes are
    wrong; never because of a result. Removes everything that it created."""
    with contextlib.ExitStack() as stack:
        run = Run(options, stack, progress)
        try:
            run.prepare()
            return measure_all(run)
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)   # it ends after the cleanup
            run.show("cleaning up")
            run.end_processes()   # first, because they may be using a mount
