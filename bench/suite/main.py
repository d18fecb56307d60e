# SPDX-License-Identifier: Apache-2.0
"""One run of `weightfs bench`. The lines of JSON on standard output are progress; the last one is the outcome for
--json, or an error."""

import contextlib
import json
import os
import random
import shutil
import signal
import stat
import sys
import time
import types

from suite import cases, devices, scaling, small, system, verdict
from suite.system import GIB, MIB, Client, Directory, Failure, Interrupted, Store, command, kernel_figure

GROUPS = [*cases.GROUPS, *small.GROUPS, devices.GROUP]


class Run:
    """The environment of the cases. Everything it creates is removed when `stack` is closed."""

    def __init__(self, job, stack, answer):
        self.options, self.stack, self.answer = types.SimpleNamespace(**job), stack, answer
        self.results, self.worker, self.clients, self.memory = verdict.Results(), None, [], None
        self.raw_ready = self.located = False
        # progress: parts per phase; the current phase; its completed fraction
        self.phases, self.phase, self.done = {}, None, 0
        self.has_own_store = not self.options.store

    def prepare(self):
        self.host_root = self.options.host or (self.options.directory if self.has_own_store
                                               else os.path.dirname(self.options.store))
        self.in_memory = system.mount_of(self.host_root)[0] == "tmpfs"
        self.size = self.choose_size()
        self.worker = Client(self.options.program, "bench-worker")
        if not self.options.quick:
            self.show("warming the memory")
        self.worker.ask("prepare", bytes=self.size, warm=not self.options.quick)
        self.make_directories()
        self.inspect_pool()

    # The additional space that a run needs, besides four times the large file (itself, what the libraries of a group
    # load in two formats, and what one of them saves): for the small files and the store itself.
    @property
    def beside(self):
        return 576 * MIB if self.options.quick else GIB

    def choose_size(self):
        memory, free, size = kernel_figure("MemAvailable"), system.free_space(self.host_root), self.options.size
        if self.in_memory:
            free = min(free, memory)
        if not size:
            # In memory: our two buffers, the states of the four libraries of a group, and what one of them loads.
            most = min(2 * GIB, memory // 7, max(free - 2 * self.beside, 0) // 17)
            size = max(min(most, 256 * MIB) if self.options.quick else most, 64 * MIB)
            size = 1 << (size.bit_length() - 1)
        if 0 < self.options.large_size < size:
            raise Failure(f"--large-size {self.options.large_size // MIB}M: smaller than the big file, which has "
                          f"{size // MIB} MiB here; give a larger one, or a smaller --size")
        # The pool, five files on the host, and the store of the second mount; if the host's filesystem is in memory,
        # also our own buffers.
        needed = (17 if self.in_memory else 10) * size + 2 * self.beside
        if free < needed:
            raise Failure(f"{self.host_root}: {free // MIB} MiB free, and a run with --size {size // MIB}M needs about "
                          f"{needed // MIB}; give a smaller --size, or another directory")
        return size

    def make_directories(self):
        self.base = self.stack.enter_context(system.scratch_directory(self.host_root))
        self.host = Directory(self, f"{self.base}/host")
        os.mkdir(self.host.path)
        if self.has_own_store:
            self.show("making a store")
            self.store = f"{self.base}/main/store"
            # A virtual disk may write a location without data far more slowly.
            fill = "auto" if self.options.quick else "data"
            self.weightfs = self.stack.enter_context(Store(self, "main", 4 * self.size + self.beside, fill=fill))
        else:
            self.store = self.options.store
            daemon = system.daemon_of(self.store)
            path = self.stack.enter_context(system.scratch_directory(self.options.directory))
            self.weightfs = Directory(self, path, daemon)

    def inspect_pool(self):
        """If the pool is a block device, the reference reads the same blocks of it as the large file occupies."""
        described = json.loads(command(self.options.program, "info", self.store, "--json"))["devices"]
        paths = [os.path.join(self.store, device["path"]) for device in described]
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

    def raw_file(self):
        """The reference's file, created if it is missing."""
        path = self.host.file("raw")
        if not self.raw_ready:
            self.show("writing the reference's file")
            self.worker.ask("raw-file", path=path)
            self.raw_ready = True
        return path

    def forget_raw_file(self):
        self.raw_ready = False

    def raw_read(self):
        """The job for the reference's reads."""
        if not self.pool_device:
            return {"path": self.raw_file()}
        if not self.located:
            self.weightfs.make_large_file_cold()
            self.worker.ask("locate", path=self.weightfs.large_file)
            self.located = True
        return {"path": self.pool_device, "located": True}

    def no_verify(self):
        """A second mount, with its own store, that does not verify checksums."""
        self.show("making a second store, mounted without verification")
        return self.stack.enter_context(Store(self, "noverify", self.size + self.beside, extra_options="noverify"))

    def memory_directory(self):
        if self.memory is None:
            path = self.stack.enter_context(system.scratch_directory("/dev/shm", "weightfs-bench-memory"))
            self.memory = Directory(self, path)
        return self.memory

    def drop_caches(self):
        if self.options.drop_caches:
            system.write_text("/proc/sys/vm/drop_caches", "3")

    def why_no_fio(self):
        if shutil.which("fio") is None:
            return "fio is not installed"
        return self.no_raw_writes and "the pool is a block device, and fio knows nothing of where its file lies"

    def end_clients(self):
        while self.clients:
            self.clients.pop().end()

    def end_processes(self):
        self.end_clients()
        if self.worker:
            self.worker.end()

    # Rows

    def rows_of(self, group):
        return [row for row in self.options.rows if row["group"] == group]

    def is_needed(self, name):
        """True if the row, or a row that uses it as its reference, is selected."""
        return any(name in (row["id"], row.get("reference")) and verdict.is_selected(row, self.options.only)
                   for row in self.options.rows)

    # Progress: phases, each with a number of parts

    def plan(self):
        parts = {name: 100 * (self.options.rounds + 1) * sum(self.is_needed(row["id"]) for row in self.rows_of(name))
                 for name, *_ in GROUPS}
        # A curve takes about as long as this many rows.
        self.phases = parts | {name: 500 * (self.options.rounds + 1) for name in self.options.curves}

    def start_phase(self, name):
        self.phase, self.done = name, 0

    def show(self, step, done=None):
        """Shows the current step and the completed fraction of the phase; without `done` the fraction is unchanged."""
        self.done = self.done if done is None else done
        names = list(self.phases)
        before = sum(self.phases[name] for name in names[:names.index(self.phase)]) if self.phase else 0
        # The preparations have no known total, and must not affect the rate of the later phases.
        self.answer({"step": step, "done": int(before + self.phases.get(self.phase, 0) * self.done),
                     "total": sum(self.phases.values()), "pass": 2 if self.phases else 1})


def measure(run, case, step, turn):
    step.before(turn)
    counters, cpu, begin = case.directory.counters(), case.directory.cpu_seconds(), time.monotonic()
    answer = {"seconds": None, **step.work(turn)}
    seconds = answer["seconds"] or time.monotonic() - begin
    sample = {"rate": answer.get("rate") or answer["amount"] / seconds, "seconds": seconds, "bytes": answer["bytes"],
              "client_cpu_seconds": answer["cpu"], "daemon_cpu_seconds": case.directory.cpu_seconds() - cpu}
    if "device_read_bytes" in counters:
        sample["device_read_bytes"] = case.directory.counters()["device_read_bytes"] - counters["device_read_bytes"]
    step.after(turn)
    if not turn.warm_up:
        run.results.add(step.row, case.way, sample)


def run_group(run, chance, name, prepare, finish):
    """Each round runs every case once, in a newly shuffled order. The first round is a warm-up and does not count."""
    if not run.phases[name]:
        return
    run.start_phase(name)
    run.show(f"{name}: preparing")
    needed = [case for case in prepare(run) if any(run.is_needed(step.row) for step in case.steps)]
    rounds = run.options.rounds
    for turn in range(rounds + 1):
        title = f"round {turn} of {rounds}" if turn else "warming up"
        chance.shuffle(needed)
        for at, case in enumerate(needed):
            run.show(f"{name}: {title}, {case.steps[0].row}", (turn * len(needed) + at) / (rounds + 1) / len(needed))
            for step in case.steps:
                try:
                    measure(run, case, step, cases.Turn(turn == 0, chance.getrandbits(64)))
                except (Failure, OSError) as error:
                    raise Failure(f"{step.row}, {case.way}: {error}") from error
    finish(run)


def idle_cpu(run):
    """The daemon's CPU time while it has no requests, in seconds per second."""
    time.sleep(0.2 if run.options.quick else 1.5)   # let pending commits finish first
    before, begin = run.weightfs.cpu_seconds(), time.monotonic()
    time.sleep(0.2 if run.options.quick else 2)
    return (run.weightfs.cpu_seconds() - before) / (time.monotonic() - begin)


def measure_all(run):
    times, chance = system.ProcessorTimes(), random.Random(run.options.seed)
    daemon = run.weightfs.daemon
    with contextlib.suppress(OSError):   # if this fails, the peak is the one since the mount
        system.write_text(f"/proc/{daemon}/clear_refs", "5")
    run.plan()
    for group in GROUPS:
        run_group(run, chance, *group)
    curves = scaling.measure_scaling(run)
    run.show("idle")
    idle, capacity = idle_cpu(run), run.weightfs.counters().get("buffer_capacity", 0)
    noise = {**verdict.noise_of(run.results), "load_average": os.getloadavg()[0], "steal": times.steal_since()}
    return {"version": run.options.json_version, "facts": system.facts(run), "seed": run.options.seed, "size_bytes": run.size,
            "rounds": run.options.rounds, "in_memory": run.in_memory, "noise": noise,
            "daemon": {"idle_cpu": idle, "memory_limit_bytes": capacity and capacity + 64 * MIB,
                       "memory_peak_bytes": kernel_figure("VmHWM", daemon),
                       "memory_now_bytes": kernel_figure("VmRSS", daemon)},
            "rows": [verdict.judge(row, run.results, run.in_memory, run.size) for row in run.options.rows
                     if verdict.is_selected(row, run.options.only)],
            "curves": curves}


def main(job):
    def answer(line):
        # The bytes of a name need not be UTF-8, but JSON must be.
        text = (json.dumps(line, ensure_ascii=False) + "\n").encode(errors="replace")
        while text:
            text = text[os.write(answers, text):]

    # A library's own output must not be mistaken for an answer.
    answers = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    signal.signal(signal.SIGTERM, system.on_sigterm)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with contextlib.ExitStack() as stack:
            run = Run(job, stack, answer)
            try:
                run.prepare()
                line = {"outcome": measure_all(run)}
                run.show("cleaning up")
            finally:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                run.end_processes()   # first, because they may be using a mount
    except Interrupted:
        line = {"error": job["interrupted"]}
    except (Failure, OSError) as error:
        name = f"{error.filename}: {error.strerror}" if getattr(error, "filename", None) else str(error)
        line = {"error": name}
    with contextlib.suppress(OSError):   # the command was killed, so nothing reads the output
        answer(line)
