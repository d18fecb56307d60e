# SPDX-License-Identifier: Apache-2.0
"""How cost grows with the number of streams, the size of a file, the age of a store, and the number of files. Takes
long."""

import contextlib
import math
import random
import shutil
import statistics
import time

from .cases import compared, fio
from .machine import GIB, MIB, ProcessorTimes, kernel_figure, size_text
from .verdict import check, in_turns

AGED_OF_FRESH, AGE_ROUNDS, AGE_STEP, FULL = 0.9, 50, 10, 0.9
SMALL_FILE, IN_DIRECTORY = 4096, 1000


def curve(name, title, x_title, points, limit="", checks=(), y_title="throughput, GB/s", unit="GB/s"):
    return {"id": name, "title": title, "x_title": x_title, "y_title": y_title, "unit": unit,
            "points": [{"x": x, "values": values} for x, values in points], "limit": limit, "checks": list(checks)}


def limit_of(reads, reference):
    """What limits the best one of (GB/s, the part of the processors that was busy)."""
    best, busy = max(reads)
    processors = f"the processors are {busy * 100:.0f} % busy (reads)"
    if not reference:
        return processors
    what = "the disk" if best >= 0.85 * reference else "the processors" if busy >= 0.85 else "waiting"
    return f"limited by {what}: at its best {best / reference:.2f} of the reference, {processors}"


def read_reference(run):
    if run.no_raw_reads or shutil.which("fio") is None:
        return 0
    job = {"size": run.size, **run.raw()}
    return statistics.median(fio(mode="read", depth=32, direct=not run.in_memory, **job)["rate"]
                             for _ in range(3)) / 1e9


def streams(run, reference):
    """Reads as many files at once as there are streams."""
    points, reads, rounds, chance = [], [], run.options.rounds, random.Random(run.options.seed)
    size, names = max(run.size // 8 // MIB * MIB, MIB), [f"stream-{index}" for index in range(8)]
    if shutil.which("fio") is None:
        return []
    for number, count in enumerate((1, 2, 4, 8)):
        rates = {}
        for turn, at, (way, directory) in in_turns(compared(run), rounds, chance):
            run.show(f"scaling: {count} files at once", (number + turn / (rounds + 1)) / 4)
            for do in ("write", "read"):
                directory.remove(*names) if do == "write" else directory.make_cold(*map(directory.file, names[:count]))
                times = ProcessorTimes()
                rate = fio(directory.file("stream-%"), do, size, direct=False, jobs=count)["rate"] / 1e9
                if turn and (way, do) == ("weightfs", "read"):
                    reads.append((rate, times.parts_since()[0]))
                rates.setdefault(f"{way}, {do}", []).extend([rate] * (turn > 0))
        points.append((count, {name: statistics.median(rates[name]) for name in sorted(rates)}))
    for _, directory in compared(run):
        directory.remove(*names)
    return [curve("streams", "Files at once", "files read or written at once", points, limit_of(reads, reference))]


def write_and_read(run, directory, size, turns=1):
    """The rates of a new file, which is removed again: written, and read cold; and how busy the processors were."""
    def gb_per_second(do):
        answer = run.worker.ask(do, path=path, size=size)
        return answer["bytes"] / answer["seconds"] / 1e9

    path = directory.file("new")
    written = gb_per_second("write")
    times, reads = ProcessorTimes(), []
    for _ in range(turns):
        directory.make_cold(path)
        reads.append(gb_per_second("read"))
    busy = times.parts_since()[0]
    directory.remove("new")
    return {"weightfs, read": statistics.median(reads), "weightfs, write": written}, busy


def large(run, reference):
    points, reads, moved, most = [], [], 0, run.options.large_size
    sizes = [run.size, max(most // 4 // run.size, 1) * run.size, most]
    run.show("scaling: making a store for the large file")
    with contextlib.ExitStack() as stack:
        directory = run.on(run.make_store("large", most + most // 50 + GIB, stack))
        for size in sizes:
            run.show(f"scaling: one file of {size_text(size)}", moved / sum(sizes))
            moved += size
            rates, busy = write_and_read(run, directory, size)
            reads.append((rates["weightfs, read"], busy))
            points.append((size / GIB, rates))
    return [curve("large", "One large file", "GiB in the file", points, limit_of(reads, reference))]


def aging(run, reference):
    """A store that is kept full while files of all sizes are deleted and created."""
    chance, files, points, made = random.Random(run.options.seed), {}, [], 0
    with contextlib.ExitStack() as stack:
        directory = run.on(run.make_store("aging", max(2 * run.size, 512 * MIB), stack))
        space = shutil.disk_usage(directory.path).free
        # As many small files as large ones: 64 KiB to 64 MiB, or a hundredth of the pool.
        most = math.log2(min(max(space // 100, MIB), 64 * MIB))
        for turn in range(AGE_ROUNDS + 1):
            run.show("scaling: aging a store", turn / AGE_ROUNDS)
            for name in chance.sample(sorted(files), len(files) // 10):
                directory.remove(name)
                del files[name]
            while turn and sum(files.values()) < FULL * space:
                name, made = f"aged-{made}", made + 1
                files[name] = math.ceil(2 ** chance.uniform(16, most) / 4096) * 4096
                run.worker.ask("write", path=directory.file(name), size=files[name])
            if turn % AGE_STEP == 0:
                size = min(space // 20 // MIB * MIB, run.size)
                points.append((turn, write_and_read(run, directory, size, 3)[0]))
    fresh, aged = points[0][1]["weightfs, read"], points[-1][1]["weightfs, read"]
    limit = (f"a fresh store reads at {fresh / reference:.2f} of the reference, the aged one at "
             f"{aged / reference:.2f}") if reference else ""
    return [curve("aging", "A store that ages at 90 %", "rounds of deletes and creates", points, limit,
                  [check("aged to fresh", aged / fresh, at_least=AGED_OF_FRESH)])]


def many_files(run, _):
    many, made, points = run.options.files, 0, []   # of each quarter: what the three curves show
    with contextlib.ExitStack() as stack:
        store = run.make_store("files", many * SMALL_FILE * 21 // 20 + 512 * MIB, stack)
        for quarter in (1, 2, 3, 4):
            first, begin, times = made, time.monotonic(), ProcessorTimes()
            while made < many * quarter // 4:
                run.show("scaling: making files", made / many)
                count = min(IN_DIRECTORY, many * quarter // 4 - made)
                run.worker.ask("create", path=f"{store.mount}/from-{made:07}", count=count, size=SMALL_FILE, sync=False)
                made += count
            rate, busy = (made - first) / (time.monotonic() - begin), times.parts_since()[0]
            memory = kernel_figure("VmRSS", store.daemon) / MIB
            store.unmount()
            begin = time.monotonic()
            store.mount_it()
            points.append((made, (rate, memory, time.monotonic() - begin)))
    return [curve(name, title, "files in the store", [(x, {"weightfs": values[at]}) for x, values in points], limit,
                  y_title=y_title, unit=unit) for at, (name, title, y_title, unit, limit) in enumerate((
        ("files-create", "Creating files", "files created per second", "files/s",
         f"the processors are {busy * 100:.0f} % busy"),
        ("files-memory", "The daemon's memory", "memory, MiB", "MiB",
         "before it was unmounted, with what it keeps of names and buffers"),
        ("files-mount", "Mounting", "time to mount, s", "s", "after a clean unmount, until the mount answers")))]


CURVES = {"streams": streams, "large": large, "aging": aging, "files": many_files}


def measure_scaling(run):
    names = run.options.curves
    reference = read_reference(run) if names else 0
    curves = []
    for name in names:
        run.start_phase(name)
        curves += CURVES[name](run, reference)
    return curves
