# SPDX-License-Identifier: Apache-2.0
"""The groups of rows, and the cases of each group."""

import dataclasses
import json
import os
import shutil
from typing import Callable

from .machine import MIB, kernel_figure
from .program import Client, Failure, command

SMALL_FILE = 64 << 10
NO_FIO = "fio is not installed: apt-get install fio"
HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}   # malloc asks for transparent huge pages


def nothing(_):
    pass


@dataclasses.dataclass
class Turn:
    warm_up: bool   # this step is not counted, and the data that the worker reads is verified
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


def fio(path, mode, call, size, depth=0, direct=True, jobs=1, seconds=0.0, seed=1, huge=True, sync=False, offset=0):
    """Runs fio on a file, which with several jobs has their number for %. Depth 0: read(2) and write(2)."""
    words = ["--name=weightfs-bench", "--output-format=json", "--thread", "--group_reporting", "--fallocate=none",
             "--norandommap", f"--randseed={seed % (1 << 32)}", f"--rw={mode}", f"--bs={call}", f"--size={size}",
             f"--offset={offset}", f"--numjobs={jobs}", f"--direct={int(direct)}",
             *(["--ioengine=libaio", f"--iodepth={depth}"] if depth else ["--ioengine=psync"]),
             *["--end_fsync=1"] * (mode == "write"), *["--fsync=1"] * sync,
             *["--time_based", f"--runtime={seconds * 1000:.0f}ms"] * (seconds > 0)]
    folder, name = os.path.split(path)
    words += ([f"--directory={folder}".replace(":", "\\:"), f"--filename_format={name.replace('%', '$jobnum')}"]
              if "%" in name else ["--filename=" + path.replace(":", "\\:")])
    out = command("fio", *words, env={**os.environ, **(HUGE_PAGES if huge else {})})
    job = json.loads(out[out.index("{"):])["jobs"][0]   # notes may precede it
    figures = job["write" if "write" in mode else "read"]
    spent = max(figures["runtime"], 1) / 1000
    return {"seconds": spent, "cpu": (job["usr_cpu"] + job["sys_cpu"]) / 100 * spent * jobs,
            "rate": figures["iops" if "rand" in mode else "bw_bytes"], "bytes": figures["io_bytes"]}


def fio_case(run, way, directory, row, prepare, mode, call=MIB, **job):
    """A row measured by fio on the file whose job prepare() returns."""
    if shutil.which("fio") is None:
        run.results.not_measured(row, way, NO_FIO)
        return []

    def work(turn):
        return fio(mode=mode, call=call, seed=turn.seed, **{"size": run.size, **prepare(False), **job})

    return [Case(way, directory, [Step(row, work, before=lambda _: prepare(True))])]


def raw_cases(run, row, reference_row, mode, aio=True, **job):
    """The disk alone, on blocks that have been written: the reference, and fio with its own pages of 4 KiB."""
    why = run.no_raw_reads if "read" in mode else run.no_raw_writes
    if why:
        run.results.not_measured(reference_row, "reference", why)
        run.results.not_measured(row, "fio", why)
        return []
    found = []
    for way, shown in (("reference", reference_row), ("fio", row)):
        depth = {} if "depth" in job else {"depth": 32 if aio or way == "fio" or not run.in_memory else 0}
        found += fio_case(run, way, run.host, shown, run.raw, mode, huge=way == "reference",
                          direct=not run.in_memory, **depth, **job)
    return found


def cold_file(run, directory):
    def prepare(make_cold):
        if make_cold:
            run.make_large_file_cold(directory)
        return {"path": directory.file("big")}
    return prepare


# Whole reads of the large file, cold except for `reread` and `mmap-again`

def read_cases(run):
    def whole(way, directory, row, do, passes=0, **job):
        """The pass after some others without dropping caches in between."""
        def work(turn):
            answer = run.worker.ask(do, path=directory.file("big"), check=turn.warm_up, **job)
            return {**answer, "bytes": run.size}

        def before(turn):
            run.make_large_file_cold(directory)
            for _ in range(passes):
                work(turn)

        return Case(way, directory, [Step(row, work, before)])

    def reads(way, directory):
        return [whole(way, directory, "read-1m", "read"), whole(way, directory, "read-whole", "read", call=run.size)]

    cases = raw_cases(run, "read-1m", "reference-read", "read", aio=False)
    for way, directory in compared(run):
        cases += [*reads(way, directory), whole(way, directory, "mmap", "map"),
                  whole(way, directory, "reread", "read", 2), whole(way, directory, "mmap-again", "map", 2),
                  *fio_case(run, way, directory, "readers-8", cold_file(run, directory), "read", jobs=8, direct=False)]
    mount = ("weightfs", run.weightfs)
    for depth in (1, 32, 128):
        cases += fio_case(run, *mount, f"aio-{depth}", cold_file(run, run.weightfs), "read", depth=depth)
    if not run.is_needed("read-1m") and not run.is_needed("read-whole"):
        return cases
    if not run.has_own_store:
        run.results.not_measured("read-1m", "noverify",
                                 "the mount was there before; in another directory the benchmark makes its own")
        return cases
    return cases + reads("noverify", run.no_verify())


def random_cases(run):
    """Random reads for a fixed time. On the mount and on the raw file they use libaio and O_DIRECT; on the host's
    filesystem they go through the page cache, one at a time."""
    seconds, cases = 0.1 if run.options.quick else 1.0, []
    for kib in (4, 16, 64):
        for depth in (1, 32):
            row, job = f"random-{kib}k-{depth}", {"mode": "randread", "call": kib << 10, "seconds": seconds}
            cases += fio_case(run, "weightfs", run.weightfs, row, cold_file(run, run.weightfs), depth=depth, **job)
            cases += raw_cases(run, row, row, depth=depth, **job)
            if depth == 1:
                cases += fio_case(run, "host", run.host, row, cold_file(run, run.host), direct=False, **job)
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

    rows = [f"reader-4k-{depth}" for depth in (1, 32)]
    if not any(map(run.is_needed, rows)):
        return []
    run.make_large_file_cold(run.weightfs)
    try:
        reads(1, 0)
    except Failure as error:
        for row in rows:
            run.results.not_measured(row, "weightfs", str(error))
        return []
    return [Case("weightfs", run.weightfs, [step(depth)]) for depth in (1, 32)]


def new_file(run, way, directory, row, size, amount=None, **job):
    """Writes a new file from open to close. Deleting it is not timed."""
    path = directory.file("written")

    def work(_):
        answer = run.worker.ask("write", path=path, size=size, **job)
        return {**answer, "amount": amount or size, "bytes": size}

    def after(turn):
        if turn.warm_up:
            directory.make_cold(path)
            run.worker.ask("read", path=path, size=size, check=True, unaligned=job.get("unaligned", False))
        directory.remove("written")

    return Case(way, directory, [Step(row, work, lambda _: directory.remove("written"), after)])


def write_cases(run):
    """New files of the large file's size, with fsync."""
    return raw_cases(run, "write-1m", "reference-write", "write", aio=False) + [
        new_file(run, way, directory, row, run.size, **job) for way, directory in compared(run) for row, job in (
            ("write-1m", {}), ("write-whole", {"call": run.size}), ("write-unaligned", {"unaligned": True}),
            ("write-whole-unaligned", {"call": run.size, "unaligned": True}))]


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

    cases, ways = [], dict(compared(run))
    for do in ("read", "write"):
        cases += raw_cases(run, f"direct-{do}", f"reference-direct-{do}", do, aio=False)
    try:
        tensor("tensor-write", "weightfs", run.weightfs.file("tensor"), 0)
    except Failure as error:
        del ways["weightfs"]
        run.not_measured("direct", str(error))
    for way, directory in ways.items():
        cases += [Case(way, directory, [make(way, directory, alignment)]) for alignment in range(len(ALIGNMENTS))
                  for make in (read, write)]
        cases.append(Case(way, directory, many(way, directory)))
    return cases


def finish_direct(run):
    for _, directory in compared(run):
        directory.remove("tensor")
        directory.remove("tensors")


# Python's libraries, and handles with DeepNVMe's interface, each in a process that has already imported it
# (libraries.py). The libraries of one group are compared with each other in the same rounds. Those that read the same
# format load the same file. A library has its rows of saving and loading, or of loading alone.

LIBRARIES = {
    "torch": [("torch", "torch-save", "torch-load", "torch"),
              ("weightfs.torch", "weightfs-torch-save", "weightfs-torch-load", "torch"),
              ("torch.distributed.checkpoint", "dcp-save", "dcp-load", "dcp")],
    "safetensors": [("safetensors", "safetensors-save", "safetensors-load", "safetensors"),
                    ("weightfs.safetensors", "", "weightfs-safetensors-load", "safetensors"),
                    ("fastsafetensors", "", "fastsafetensors-load", "safetensors"),
                    ("runai_model_streamer", "", "runai-load", "safetensors")],
    "numpy": [("numpy", "numpy-save", "numpy-load", "numpy")],
    "handles": [("deepspeed", "deepspeed-write", "deepspeed-read", "deepspeed"),
                ("weightfs", "aio-handle-write", "aio-handle-read", "weightfs")]}


def start_client(run, library):
    """Returns the client and "", or None and the reason why the library cannot be used."""
    active = os.environ.get("VIRTUAL_ENV")
    python = run.options.python or (f"{active}/bin/python" if active else "python3")
    try:
        client = Client(python, os.path.join(os.path.dirname(__file__), "libraries.py"))
        run.clients.append(client)
        missing = client.ask("prepare", library=library, bytes=run.size).get("missing", "")
    except Failure as error:
        missing = str(error)
    return (None, f"{missing}; --python names a Python that has {library}") if missing else (client, "")


def library_cases(run, name, save_row, load_row, form):
    rows = [row for row in (save_row, load_row) if row and run.is_needed(row)]
    client, why = start_client(run, name) if rows else (None, "")
    if client is None:
        for row in rows:
            run.results.not_measured(row, "weightfs", why)
        return []

    def work(do, path, check=False):
        return {**client.ask(do, path=path, check=check), "amount": run.size, "bytes": run.size}

    def save(directory):
        path = directory.file(f"saved-{name}")

        def remove(_):
            directory.remove(f"saved-{name}")

        def check_and_remove(turn):
            if turn.warm_up:
                directory.make_cold(path)
                work("load", path, check=True)
            remove(turn)

        return Step(save_row, lambda _: work("save", path), remove, check_and_remove)

    def load(directory):
        path = directory.file(f"loaded-{form}")
        if not os.path.exists(path):
            work("save", path)
        return Step(load_row, lambda turn: work("load", path, turn.warm_up), lambda _: directory.make_cold(path))

    steps = [step for step, row in ((save, save_row), (load, load_row)) if row in rows]
    cases = [Case(way, directory, [step(directory)]) for way, directory in compared(run) for step in steps]
    if load not in steps:
        return cases
    needed = run.size * 5 // 4
    if (not os.access("/dev/shm", os.W_OK) or shutil.disk_usage("/dev/shm").free < needed or
            kernel_figure("MemAvailable") < 3 * needed):
        run.results.not_measured(load_row, "memory", "/dev/shm has no space for the file")
        return cases
    memory = run.memory_directory()
    return [*cases, Case("memory", memory, [load(memory)])]


def python_group(group):
    def prepare(run):
        return [case for library in LIBRARIES[group] for case in library_cases(run, *library)]

    def finish(run):
        run.end_clients()
        for *_, form in LIBRARIES[group]:
            for directory in filter(None, (run.weightfs, run.host, run.memory)):
                directory.remove(f"loaded-{form}")

    return group, prepare, finish


# Name, cases, and the cleanup after them, in the order of a run.
GROUPS = [("read", read_cases, nothing), ("random", random_cases, nothing), ("write", write_cases, nothing),
          *(python_group(name) for name in ("torch", "safetensors", "numpy")), ("direct", direct_cases, finish_direct),
          python_group("handles")]
