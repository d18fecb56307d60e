# SPDX-License-Identifier: Apache-2.0
"""The groups of rows, and the cases of each group."""

import dataclasses
import json
import os
from typing import Callable

from .machine import MIB, children_cpu_seconds, free_space, kernel_figure
from .program import Client, Failure, command

SMALL_FILE = 64 << 10


def nothing(_):
    pass


@dataclasses.dataclass
class Turn:
    warm_up: bool   # this step is not counted, and the data it reads is verified
    seed: int


@dataclasses.dataclass
class Step:
    """The timed work of one row. `work` may return "seconds" and "cpu" of its own, and "amount" in the row's unit or
    "rate". "bytes" is the number of bytes moved, or 0 if that has no meaning."""
    row: str
    work: Callable
    before: Callable = nothing
    after: Callable = nothing


@dataclasses.dataclass
class Case:
    """Steps that are executed in sequence. Their costs are measured on `directory`."""
    way: str
    directory: object
    steps: list


def compared(run):
    return (("weightfs", run.weightfs), ("host", run.host))


# The disk alone: the shortest possible libaio loop on blocks that have been written, and fio for comparison.

def raw_read(run, row):
    def work(turn):
        answer = run.worker.ask("read" if run.in_memory else "aio-read", check=turn.warm_up, **run.raw_read())
        return {**answer, "bytes": run.size}

    if run.no_raw_reads:
        run.results.not_measured(row, "reference", run.no_raw_reads)
        return []
    return [Case("reference", run.host, [Step(row, work, before=lambda _: run.raw_read())])]


def raw_write(run, row):
    def work(_):
        answer = run.worker.ask("write" if run.in_memory else "aio-write", path=run.raw_file(), over_existing=True)
        return {**answer, "bytes": run.size}

    if run.no_raw_writes:
        run.results.not_measured(row, "reference", run.no_raw_writes)
        return []
    return [Case("reference", run.host, [Step(row, work, before=lambda _: run.raw_file())])]


def fio(run, row, mode, call=MIB, depth=32, seconds=0.0, aio_in_memory=False):
    """Runs fio on the reference's file."""
    def work(_):
        by_aio = not run.in_memory or aio_in_memory
        words = ["--name=weightfs-bench", "--output-format=json", "--thread", "--group_reporting", "--randrepeat=0",
                 "--fallocate=none", "--allow_file_create=0", f"--filename={run.raw_file()}", f"--rw={mode}",
                 f"--bs={call}", f"--size={run.size}", f"--ioengine={'libaio' if by_aio else 'psync'}"]
        words += [f"--iodepth={depth}"] * by_aio + ["--direct=1"] * (not run.in_memory)
        words += ["--end_fsync=1"] * (mode == "write")
        words += ["--time_based", f"--runtime={seconds * 1000:.0f}ms"] * (seconds > 0)
        cpu = children_cpu_seconds()
        out = command("fio", *words)
        job = json.loads(out[out.index("{"):])["jobs"][0]   # notes may precede it
        figures = job["write" if mode == "write" else "read"]
        if mode == "write":
            run.raw_ready = False   # it now has fio's content
        # The start and end of a timed fio run do not read, so the costs have no meaning.
        rate = figures["iops" if mode == "randread" else "bw_bytes"]
        return {"rate": rate, "cpu": children_cpu_seconds() - cpu, "bytes": 0 if seconds else run.size}

    if why := run.why_no_fio():
        run.results.not_measured(row, "fio", why)
        return []
    return [Case("fio", run.host, [Step(row, work, before=lambda _: run.raw_file())])]


# Whole reads of the large file, cold except for `reread` and `mmap-again`

def read_cases(run):
    def cold_pass(way, directory, row, do, **job):
        def work(turn):
            answer = run.worker.ask(do, path=directory.file("big"), check=turn.warm_up, **job)
            return {**answer, "bytes": run.size}

        return Case(way, directory, [Step(row, work, before=lambda _: run.make_large_file_cold(directory))])

    def third_pass(way, directory, row, do):
        """Three passes without dropping caches in between; the third one counts."""
        case = cold_pass(way, directory, row, do)
        step = case.steps[0]

        def before(turn):
            run.make_large_file_cold(directory)
            step.work(turn)
            step.work(turn)

        case.steps = [Step(row, step.work, before)]
        return case

    def readers(way, directory):
        def work(turn):
            job = {"do": "read", "path": directory.file("big"), "check": turn.warm_up}
            answer = run.worker.ask("together", jobs=[job] * 8)
            return {**answer, "bytes": answer["amount"]}

        return Case(way, directory, [Step("readers-8", work, before=lambda _: run.make_large_file_cold(directory))])

    def whole_reads(way, directory):
        return [cold_pass(way, directory, "read-1m", "read"),
                cold_pass(way, directory, "read-whole", "read", call=run.size)]

    cases = raw_read(run, "reference-read") + fio(run, "read-1m", "read")
    for way, directory in compared(run):
        cases += [*whole_reads(way, directory), cold_pass(way, directory, "mmap", "map"),
                  third_pass(way, directory, "reread", "read"), third_pass(way, directory, "mmap-again", "map"),
                  readers(way, directory)]
    cases += [cold_pass("weightfs", run.weightfs, f"aio-{depth}", "aio-read", depth=depth) for depth in (1, 32, 128)]
    if not run.is_needed("read-1m") and not run.is_needed("read-whole"):
        return cases
    if not run.has_own_store:
        run.results.not_measured("read-1m", "noverify",
                                 "the mount was there before; in another directory the benchmark makes its own")
        return cases
    return cases + whole_reads("noverify", run.no_verify())


def random_cases(run):
    """Random reads for a fixed time. On the mount and on the raw file they use libaio and O_DIRECT; on the host's
    filesystem they go through the page cache, one at a time."""
    seconds = 0.1 if run.options.quick else 1.0

    def reads(way, directory, row, call, depth):
        raw = way == "reference"

        def work(turn):
            job = run.raw_read() if raw else {"path": directory.file("big")}
            answer = run.worker.ask("random", **job, call=call, depth=depth, duration=seconds, seed=turn.seed,
                                    check=turn.warm_up, buffered=way == "host")
            return {**answer, "bytes": answer["amount"] * call}

        return Case(way, directory, [Step(row, work, before=lambda _: run.raw_read() if raw
                                          else run.make_large_file_cold(directory))])

    cases = []
    for kib in (4, 16, 64):
        for depth in (1, 32):
            row, call = f"random-{kib}k-{depth}", kib << 10
            cases.append(reads("weightfs", run.weightfs, row, call, depth))
            if run.no_raw_reads:
                run.results.not_measured(row, "reference", run.no_raw_reads)
            else:
                cases.append(reads("reference", run.host, row, call, depth))
            if depth == 1:
                cases.append(reads("host", run.host, row, call, depth))
            cases += fio(run, row, "randread", call, depth, seconds)
    return cases + reader_cases(run, seconds)


def reader_cases(run, seconds):
    """Random reads by leases, through the client library's reader, which stays open during a measurement."""
    def reads(depth, duration, **job):
        answer = run.worker.ask("reader", path=run.weightfs.file("big"), call=4096, depth=depth, duration=duration,
                                **job)
        return {**answer, "bytes": answer["amount"] * 4096}

    def step(depth):
        return Step(f"reader-4k-{depth}", lambda turn: reads(depth, seconds, seed=turn.seed, check=turn.warm_up),
                    before=lambda _: run.make_large_file_cold(run.weightfs))

    if not any(run.is_needed(f"reader-4k-{depth}") for depth in (1, 32)):
        return []
    run.make_large_file_cold(run.weightfs)
    try:
        reads(1, 0)
    except Failure as error:
        for depth in (1, 32):
            run.results.not_measured(f"reader-4k-{depth}", "weightfs", str(error))
        return []
    return [Case("weightfs", run.weightfs, [step(depth)]) for depth in (1, 32)]


def write_cases(run):
    """A new file of the large file's size, with fsync. Deleting it is not timed."""
    def new_file(way, directory, row, **job):
        path = directory.file("written")

        def work(_):
            return {**run.worker.ask("write", path=path, **job), "bytes": run.size}

        def after(turn):
            if turn.warm_up:
                directory.make_cold(path)
                run.worker.ask("read", path=path, check=True, unaligned=job.get("unaligned", False))
            directory.remove("written")

        return Case(way, directory, [Step(row, work, lambda _: directory.remove("written"), after)])

    cases = raw_write(run, "reference-write") + fio(run, "write-1m", "write")
    for way, directory in compared(run):
        cases += [new_file(way, directory, "write-1m"), new_file(way, directory, "write-whole", call=run.size),
                  new_file(way, directory, "write-unaligned", unaligned=True),
                  new_file(way, directory, "write-whole-unaligned", call=run.size, unaligned=True)]
    return cases


# Whole tensors through the client library: on the mount by leases of the store's blocks, and with the same handle on
# the host's files; also thousands of small tensors in one commit.

ALIGNMENTS = ["", "-unaligned", "-4k-pages"]


def direct_cases(run):
    def tensor(do, way, path, alignment, **job):
        answer = run.worker.ask(do, path=path, direct=way == "weightfs", alignment=alignment, **job)
        return {**answer, "bytes": run.size}

    def read(way, directory, alignment):
        return Step(f"direct-read{ALIGNMENTS[alignment]}",
                    lambda turn: tensor("tensor-read", way, directory.file("big"), alignment, check=turn.warm_up),
                    before=lambda _: run.make_large_file_cold(directory))

    def write(way, directory, alignment):
        """Overwrites the same file repeatedly, like a program that swaps a tensor out, and like the reference."""
        path = directory.file("tensor")

        def after(turn):
            if turn.warm_up:
                directory.make_cold(path)
                run.worker.ask("read", path=path, check=True, unaligned=ALIGNMENTS[alignment] == "-unaligned")

        return Step(f"direct-write{ALIGNMENTS[alignment]}",
                    lambda _: tensor("tensor-write", way, path, alignment), after=after)

    def many(way, directory):
        """Small tensors, saved under new names, loaded, and removed without being timed. On the host each one is a file
        of its own, written with an fsync, and read."""
        count = min(200 if run.options.quick else 4000, run.size // SMALL_FILE)
        files = {"path": directory.file("tensors"), "count": count, "size": SMALL_FILE, "durable": True}
        save, load = ("save-many", "load-many") if way == "weightfs" else ("create", "read-all")
        moved = {"bytes": count * SMALL_FILE}

        return [Step("save-many", lambda _: {**run.worker.ask(save, **files), **moved}),
                Step("load-many", lambda turn: {**run.worker.ask(load, check=turn.warm_up, **files), **moved},
                     lambda _: directory.make_cold(files["path"]), after=lambda _: run.worker.ask("unlink", **files))]

    cases = raw_read(run, "reference-direct-read") + raw_write(run, "reference-direct-write")
    for do in ("read", "write"):
        cases += fio(run, f"direct-{do}", do, aio_in_memory=True)
    ways = dict(compared(run))
    try:
        tensor("tensor-write", "weightfs", run.weightfs.file("tensor"), 0)
    except Failure as error:
        del ways["weightfs"]
        run.not_measured("direct", str(error))
    for way, directory in ways.items():
        for alignment in range(len(ALIGNMENTS)):
            cases += [Case(way, directory, [read(way, directory, alignment)]),
                      Case(way, directory, [write(way, directory, alignment)])]
        cases.append(Case(way, directory, many(way, directory)))
    return cases


def finish_direct(run):
    for _, directory in compared(run):
        directory.remove("tensor")
        if os.path.isdir(directory.file("tensors")):
            os.rmdir(directory.file("tensors"))


# Python's libraries, and handles with DeepNVMe's interface, each in a process that has already imported it
# (clients.py). The libraries of one group are compared with each other in the same rounds. Those that read the same
# format load the same file.

@dataclasses.dataclass
class Library:
    name: str
    save_row: str   # "": it only loads
    load_row: str
    format: str


LIBRARIES = {
    "torch": [Library("torch", "torch-save", "torch-load", "torch"),
              Library("weightfs.torch", "weightfs-torch-save", "weightfs-torch-load", "torch"),
              Library("torch.distributed.checkpoint", "dcp-save", "dcp-load", "dcp")],
    "safetensors": [Library("safetensors", "safetensors-save", "safetensors-load", "safetensors"),
                    Library("weightfs.safetensors", "", "weightfs-safetensors-load", "safetensors"),
                    Library("fastsafetensors", "", "fastsafetensors-load", "safetensors"),
                    Library("runai_model_streamer", "", "runai-load", "safetensors")],
    "numpy": [Library("numpy", "numpy-save", "numpy-load", "numpy")],
    "handles": [Library("deepspeed", "deepspeed-write", "deepspeed-read", "deepspeed"),
                Library("weightfs", "aio-handle-write", "aio-handle-read", "weightfs")]}


def find_python(options):
    active = os.environ.get("VIRTUAL_ENV", "") + "/bin/python"
    return options.python or (active if os.access(active, os.X_OK) else "python3")


def start_client(run, library):
    """Returns the client and "", or None and the reason why the library cannot be used."""
    try:
        client = Client(find_python(run.options), os.path.join(os.path.dirname(__file__), "libraries.py"))
        run.clients.append(client)
        missing = client.ask("prepare", library=library, bytes=run.size).get("missing", "")
    except Failure as error:
        missing = str(error)
    return (None, f"{missing}; --python names a Python that has {library}") if missing else (client, "")


def library_cases(run, library):
    rows = [row for row in (library.save_row, library.load_row) if row and run.is_needed(row)]
    if not rows:
        return []
    client, why = start_client(run, library.name)
    if why:
        for row in rows:
            run.results.not_measured(row, "weightfs", why)
        return []

    def work(do, path, check=False):
        return {**client.ask(do, path=path, check=check), "amount": run.size, "bytes": run.size}

    def save(directory):
        name = f"saved-{library.name}"
        path = directory.file(name)

        def remove(_):
            directory.remove(name)

        def check_and_remove(turn):
            if turn.warm_up:
                directory.make_cold(path)
                work("load", path, check=True)
            remove(turn)

        return Step(library.save_row, lambda _: work("save", path), remove, check_and_remove)

    def load(directory):
        path = directory.file(f"loaded-{library.format}")
        if not os.path.exists(path):
            work("save", path)
        return Step(library.load_row, lambda turn: work("load", path, turn.warm_up),
                    lambda _: directory.make_cold(path))

    steps = [step for step, row in ((save, library.save_row), (load, library.load_row)) if row in rows]
    cases = [Case(way, directory, [step(directory)]) for way, directory in compared(run) for step in steps]
    if load not in steps:
        return cases
    needed = run.size * 5 // 4
    if (not os.access("/dev/shm", os.W_OK) or free_space("/dev/shm") < needed or
            kernel_figure("MemAvailable") < 3 * needed):
        run.results.not_measured(library.load_row, "memory", "/dev/shm has no space for the file")
        return cases
    memory = run.memory_directory()
    return [*cases, Case("memory", memory, [load(memory)])]


def python_group(name):
    def prepare(run):
        return [case for library in LIBRARIES[name] for case in library_cases(run, library)]

    def finish(run):
        run.end_clients()
        for name_of_file in {f"loaded-{library.format}" for library in LIBRARIES[name]}:
            for directory in filter(None, (run.weightfs, run.host, run.memory)):
                directory.remove(name_of_file)

    return name, prepare, finish


# Name, cases, and the cleanup after them, in the order of a run.
GROUPS = [("read", read_cases, nothing), ("random", random_cases, nothing), ("write", write_cases, nothing),
          *(python_group(name) for name in ("torch", "safetensors", "numpy")), ("direct", direct_cases, finish_direct),
          python_group("handles")]
