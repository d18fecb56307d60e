# SPDX-License-Identifier: Apache-2.0
"""The groups of rows, and the cases of each group."""

import dataclasses
import json
import os
import shutil
from typing import Callable

from .machine import MIB, children_cpu_seconds, kernel_figure, sync_file
from .program import Client, Failure, command

SMALL_FILE, SMALL_READ = 64 << 10, 4 << 10
NO_FIO = "fio is not installed: apt-get install fio"
HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}   # malloc asks for transparent huge pages
UNALIGNED = 1
ALIGNMENTS = ["", "-unaligned", "-4k-pages"]   # of the worker's memory; the position is the number


def nothing(_):
    pass


@dataclasses.dataclass
class Turn:
    warm_up: bool   # this step is not counted, and the data that the worker reads is verified
    seed: int


@dataclasses.dataclass
class Step:
    """The timed work of one row. `work` returns "bytes", the number of bytes moved, or 0 if that has no meaning;
    "amount" in the row's unit, or "rate"; and, if it measures them itself, "seconds" and "cpu"."""
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


def fio(path, mode, size, call=MIB, depth=0, direct=True, jobs=1, seconds=0.0, seed=1, huge=True, sync=False, offset=0):
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


# What the cases of several groups are made of

def by_fio(run, way, directory, row, mode, target=None, before=nothing, after=nothing, **job):
    """A row measured by fio: on the large file, cold, or on the file of target()."""
    if shutil.which("fio") is None:
        run.results.not_measured(row, way, NO_FIO)
        return []

    def large():
        return {"path": directory.file("big")}

    def work(turn):
        return fio(mode=mode, seed=turn.seed, **{"size": run.size, **(target or large)(), **job})

    make_cold = before if target else lambda _: run.make_large_file_cold(directory)
    return [Case(way, directory, [Step(row, work, make_cold, after)])]


def of_the_disk(run, row, reference_row, mode, aio=True, **job):
    """The disk alone, on blocks that have been written: the reference, and fio with its own pages of 4 KiB."""
    why = run.no_raw_reads if "read" in mode else run.no_raw_writes
    if why:
        run.results.not_measured(reference_row, "reference", why)
        run.results.not_measured(row, "fio", why)
        return []
    found = []
    for way, shown in (("reference", reference_row), ("fio", row)):
        depth = {} if "depth" in job else {"depth": 32 if aio or way == "fio" or not run.in_memory else 0}
        found += by_fio(run, way, run.host, shown, mode, run.raw, huge=way == "reference", direct=not run.in_memory,
                        **depth, **job)
    return found


def read(run, way, directory, row, do="read", passes=0, before=None, **job):
    """The worker reads the large file, or a file that `before` makes cold, after `passes` reads without dropping
    caches."""
    def work(turn):
        return run.worker.ask(do, **{"path": directory.file("big"), **job}, check=turn.warm_up)

    def prepare(turn):
        before(turn) if before else run.make_large_file_cold(directory)
        for _ in range(passes):
            work(turn)

    return Case(way, directory, [Step(row, work, prepare)])


def write(run, way, directory, row, do="write", overwrite="", calls=0, size=0, before=nothing, **job):
    """The worker writes a new file of the large file's size, or another one. Deleting it is not timed. Or it overwrites
    the file `overwrite` repeatedly, like a program that swaps a tensor out, and like the reference. calls: the amount,
    if it is not the bytes."""
    name = overwrite or "written"
    path = directory.file(name)

    def work(_):
        answer = run.worker.ask(do, path=path, size=size, **job)
        return {**answer, "amount": calls or answer["amount"]}

    def after(turn):
        if turn.warm_up:
            directory.make_cold(path)
            run.worker.ask("read", path=path, size=size, check=True, alignment=job.get("alignment", 0))
        if not overwrite:
            directory.remove(name)

    return Case(way, directory, [Step(row, work, before, after)])


# The groups

def read_cases(run):
    """Whole reads of the large file, cold except for `reread` and `mmap-again`."""
    def reads(way, directory):
        return [read(run, way, directory, "read-1m"), read(run, way, directory, "read-whole", call=run.size)]

    cases = of_the_disk(run, "read-1m", "reference-read", "read", aio=False)
    for way, directory in compared(run):
        cases += [*reads(way, directory), read(run, way, directory, "mmap", "map"),
                  read(run, way, directory, "reread", passes=2), read(run, way, directory, "mmap-again", "map", 2),
                  *by_fio(run, way, directory, "readers-8", "read", jobs=8, direct=False)]
    for depth in (1, 32, 128):
        cases += by_fio(run, "weightfs", run.weightfs, f"aio-{depth}", "read", depth=depth)
    if not run.has_own_store:
        run.results.not_measured("read-1m", "noverify",
                                 "the mount was there before; in another directory the benchmark makes its own")
    elif run.is_needed("read-1m") or run.is_needed("read-whole"):
        run.show("making a second store, mounted without verification")
        cases += reads("noverify", run.on(run.make_store("noverify", run.size + run.beside, options="noverify")))
    return cases


def random_cases(run):
    """Random reads for a fixed time. On the mount and on the raw file they use libaio and O_DIRECT; on the host's
    filesystem they go through the page cache, one at a time. Those by leases, through the client library's reader,
    are without the time to open it."""
    seconds, cases = 0.1 if run.options.quick else 1.0, []
    for kib in (4, 16, 64):
        for depth in (1, 32):
            row, job = f"random-{kib}k-{depth}", {"mode": "randread", "call": kib << 10, "seconds": seconds}
            cases += by_fio(run, "weightfs", run.weightfs, row, depth=depth, **job)
            cases += of_the_disk(run, row, row, depth=depth, **job)
            if depth == 1:
                cases += by_fio(run, "host", run.host, row, direct=False, **job)

    def by_reader(depth, duration, **job):
        return run.worker.ask("reader", path=run.weightfs.file("big"), call=4096, depth=depth, duration=duration, **job)

    def step(row, depth):
        return Step(row, lambda turn: by_reader(depth, seconds, seed=turn.seed, check=turn.warm_up),
                    before=lambda _: run.make_large_file_cold(run.weightfs))

    rows = {f"reader-4k-{depth}": depth for depth in (1, 32)}
    if any(map(run.is_needed, rows)):
        run.make_large_file_cold(run.weightfs)
        try:
            by_reader(1, 0)
            cases += [Case("weightfs", run.weightfs, [step(row, depth)]) for row, depth in rows.items()]
        except Failure as error:
            for row in rows:
                run.results.not_measured(row, "weightfs", str(error))
    return cases


def write_cases(run):
    """New files of the large file's size, with fsync."""
    return of_the_disk(run, "write-1m", "reference-write", "write", aio=False) + [
        write(run, way, directory, row, **job) for way, directory in compared(run) for row, job in (
            ("write-1m", {}), ("write-whole", {"call": run.size}), ("write-unaligned", {"alignment": UNALIGNED}),
            ("write-whole-unaligned", {"call": run.size, "alignment": UNALIGNED}))]


def direct_cases(run):
    """Whole tensors through the client library: on the mount by leases of the store's blocks, and with the same handle
    on the host's files; also thousands of small tensors in one commit."""
    def many(way, directory):
        """Small tensors, saved under new names, loaded, and removed without being timed. On the host each one is a file
        of its own, written with an fsync, and read."""
        count = min(200 if run.options.quick else 4000, run.size // SMALL_FILE)
        files = {"path": directory.file("tensors"), "count": count, "size": SMALL_FILE}
        save, load = ("save-many", "load-many") if way == "weightfs" else ("create", "read-all")
        return [Step("save-many", lambda _: run.worker.ask(save, **files)),
                Step("load-many", lambda turn: run.worker.ask(load, check=turn.warm_up, **files),
                     lambda _: directory.make_cold(files["path"]), after=lambda _: run.worker.ask("unlink", **files))]

    cases, ways = [], dict(compared(run))
    for do in ("read", "write"):
        cases += of_the_disk(run, f"direct-{do}", f"reference-direct-{do}", do, aio=False)
    try:
        run.worker.ask("tensor-write", path=run.weightfs.file("tensor"), direct=True)
    except Failure as error:
        del ways["weightfs"]
        run.not_measured("direct", str(error))
    for way, directory in ways.items():
        for alignment, name in enumerate(ALIGNMENTS):
            job = {"direct": way == "weightfs", "alignment": alignment}
            cases += [read(run, way, directory, f"direct-read{name}", "tensor-read", **job),
                      write(run, way, directory, f"direct-write{name}", "tensor-write", "tensor", **job)]
        cases.append(Case(way, directory, many(way, directory)))
    return cases


def small_cases(run):
    """The life cycle of many small files. Names and attributes are cold only if the caches of the whole machine may be
    dropped; otherwise the rows measure the requests that the kernel's caches let through."""
    count = 200 if run.options.quick else 2000

    def drop_names(_):
        os.sync() if run.options.drop_caches else None
        run.drop_caches()

    def life(directory):
        files = {"path": directory.file("small"), "count": count, "size": SMALL_FILE}

        def step(row, do, before=nothing, after=nothing):
            return Step(row, lambda _: run.worker.ask(do, sync=False, **files), before, after)

        def compare(turn):
            if turn.warm_up:
                run.worker.ask("read-all", check=True, **files)

        return [step("create", "create"), step("stat", "stat", drop_names), step("stat-again", "stat"),
                step("list", "list", drop_names), step("list-again", "list"),
                step("replace", "replace", after=compare),
                step("unlink", "unlink", after=lambda _: sync_file(files["path"]))]

    def replacements(directory, name, size, count, sync=False):
        """Files that are created, and replaced by new ones that get their names."""
        files = {"path": directory.file("replaced"), "size": size, "sync": sync}
        files["count"] = min(200 if run.options.quick else count, run.size // size)

        def after(turn):
            run.worker.ask("read-all", check=True, **files) if turn.warm_up else None
            run.worker.ask("unlink", **files)
            sync_file(files["path"])

        return [Step(f"create-{name}", lambda _: run.worker.ask("create", **files)),
                Step(f"replace-{name}", lambda _: run.worker.ask("replace", **files), after=after)]

    def reads(directory):
        """Files that one request reads, opened, read and closed: first from the disk, then from the kernel's cache."""
        files = {"path": directory.file("small-reads"), "count": count, "size": SMALL_READ}

        def make_files(_):
            run.worker.ask("create", sync=False, **files)
            sync_file(files["path"])
            directory.make_cold(files["path"])

        def work(turn):
            return run.worker.ask("read-all", check=turn.warm_up, **files)

        return [Step("small-read-cold", work, make_files),
                Step("small-read", work, after=lambda _: run.worker.ask("unlink", **files))]

    makers = [life, reads, lambda directory: replacements(directory, "4k", SMALL_READ, 2000),
              lambda directory: replacements(directory, "1m", MIB, 200),
              lambda directory: replacements(directory, "4k-sync", SMALL_READ, 1000, sync=True),
              lambda directory: git_steps(run, directory)]
    if shutil.which("git") is None:
        run.results.not_measured("git-add", "weightfs", "git is not installed")
        makers.pop()
    return [Case(way, directory, make(directory)) for make in makers for way, directory in compared(run)]


def git_steps(run, directory):
    """`git add` of many small files in a new repository."""
    repository, count = directory.file("git"), 500

    def make_repository(_):
        directory.remove("git")
        command("git", "init", "--quiet", "--template=", repository)
        run.worker.ask("create", path=f"{repository}/files", count=count, size=SMALL_READ, sync=False)

    def add(_):
        cpu = children_cpu_seconds()
        command("git", "-C", repository, "add", ".")
        return {"amount": count, "cpu": children_cpu_seconds() - cpu, "bytes": count * SMALL_READ}

    def after(turn):
        if turn.warm_up:
            command("git", "-C", repository, "fsck", "--strict")
            if len(command("git", "-C", repository, "ls-files").splitlines()) != count:
                raise Failure(f"git add did not add all of {count} files")

    return [Step("git-add", add, make_repository, after)]


def small_write_cases(run):
    """Writes of a few bytes or of one block by ordinary calls, without fsync and with one after each."""
    seconds, count = (0.1, 2000) if run.options.quick else (1.0, 50000)

    def overwrite(way, directory, row, jobs=1, sync=True):
        """Blocks at random offsets, in a file of each thread's own that was just written: the host's cache has its
        pages, and all that an overwrite of them needs."""
        size = min(run.size, 256 * MIB) // jobs
        paths = [directory.file(f"{row}-{number}") for number in range(jobs)]

        def make_files(_):
            for path in paths:
                run.worker.ask("write", path=path, size=size)

        def remove(_):
            for path in paths:
                os.unlink(path)
            sync_file(directory.path)

        return by_fio(run, way, directory, row, "randwrite", lambda: {"path": directory.file(f"{row}-%")}, make_files,
                      remove, size=size, call=SMALL_READ, jobs=jobs, sync=sync, direct=False, seconds=seconds)

    cases = []
    for way, directory in compared(run):
        cases += [write(run, way, directory, row, size=count * call, calls=count, call=call, sync=False)
                  for row, call in (("append-4", 4), ("append-4k", SMALL_READ))]
        cases += [*overwrite(way, directory, "write-4k-random", sync=False), *overwrite(way, directory, "fsync-4k"),
                  *overwrite(way, directory, "fsync-4k-8", jobs=8)]
    return cases


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

        def remove(turn, check=False):
            if check and turn.warm_up:
                directory.make_cold(path)
                work("load", path, check=True)
            directory.remove(f"saved-{name}")

        return Step(save_row, lambda _: work("save", path), remove, lambda turn: remove(turn, check=True))

    def load(directory):
        path = directory.file(f"loaded-{form}")
        if not os.path.exists(path):
            work("save", path)
        return Step(load_row, lambda turn: work("load", path, turn.warm_up), lambda _: directory.make_cold(path))

    makers = [make for make, row in ((save, save_row), (load, load_row)) if row in rows]
    cases = [Case(way, directory, [make(directory)]) for way, directory in compared(run) for make in makers]
    if load in makers and (not os.access("/dev/shm", os.W_OK) or kernel_figure("MemAvailable") < 15 * run.size // 4 or
                           shutil.disk_usage("/dev/shm").free < run.size * 5 // 4):
        run.results.not_measured(load_row, "memory", "/dev/shm has no space for the file")
    elif load in makers:
        memory = run.memory_directory()
        cases.append(Case("memory", memory, [load(memory)]))
    return cases


def libraries_of(group):
    return group, lambda run: [case for library in LIBRARIES[group] for case in library_cases(run, *library)]


# Name and cases, in the order of a run.
GROUPS = [("read", read_cases), ("random", random_cases), ("write", write_cases),
          *map(libraries_of, ("torch", "safetensors", "numpy")), ("direct", direct_cases), libraries_of("handles"),
          ("small", small_cases), ("small-writes", small_write_cases)]
