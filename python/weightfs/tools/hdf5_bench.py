# SPDX-License-Identifier: Apache-2.0
"""Compares HDF5's drivers, in the form of the GPUDirect driver's study. It measures write and read rates of one dataset
over request sizes by sec2, stdio, weightfs and a plain handle. It also sweeps settings of the driver and measures small
requests.

The rounds of the drivers alternate, and the table shows medians and ratios. A write ends when the file is durable
(fsync). A read begins without pages of the file in the page cache. Needs h5py and numpy.

    python -m weightfs.tools.hdf5_bench /mnt/tensors
"""

import argparse
import itertools
import os
import sys
import tempfile
import time

import h5py
import numpy as np

import weightfs
import weightfs.hdf5
from weightfs.bench import compare
from weightfs.bench.machine import drop_pages, size_text, sync_file
from weightfs.bench.program import Parser, directory, number_from, size
from weightfs.bench.workers import together

HDF5_DRIVERS = ("sec2", "stdio", "weightfs")
DRIVERS = (*HDF5_DRIVERS, "handle")
KINDS = ("write", "read")


def opened(driver, path, mode, settings):
    if driver == "weightfs":
        return weightfs.hdf5.File(path, mode, **settings)
    return h5py.File(path, mode, driver=driver)


def transfer(kind, driver, path, request, total, settings, buffer):
    """Writes a new file of `total` bytes, or reads it, in requests of `request` bytes. Returns the seconds until it was
    durable, or read."""
    part, offsets, writes = buffer[:request], range(0, total, request), kind == "write"
    if not writes:
        drop_pages(path)
    elif os.path.exists(path):
        os.unlink(path)
    begin = time.perf_counter()
    if driver == "handle":
        options = {"block_size": settings["block_size"], "queue_depth": settings["queue_depth"],
                   "intra_op_parallelism": settings["num_threads"]}
        with weightfs.aio_handle(**options) as handle, open(path, "xb" if writes else "rb") as stream:
            begin = time.perf_counter()   # the driver also keeps its handle from file to file
            for at in offsets:
                (handle.write_from if writes else handle.read_into)(part, stream.fileno(), at)
            if writes:
                os.fsync(stream.fileno())
            return time.perf_counter() - begin
    with opened(driver, path, "w" if writes else "r", settings) as file:
        data = file.create_dataset("x", (total,), "uint8") if writes else file["x"]
        for at in offsets:
            if writes:
                data.write_direct(part, dest_sel=np.s_[at:at + request])
            else:
                data.read_direct(part, source_sel=np.s_[at:at + request])
    if writes:
        sync_file(path)
    return time.perf_counter() - begin


def timed(driver, path, settings, write, read):
    """Calls both with an open file. Returns the seconds of each, with those of opening and closing."""
    begin = time.perf_counter()
    with opened(driver, path, "w", settings) as file:
        write(file)
    between = time.perf_counter()
    drop_pages(path)
    again = time.perf_counter()
    with opened(driver, path, "r", settings) as file:
        read(file)
    return between - begin, time.perf_counter() - again


def chunks(written, read_in):
    """Chunks of 16 KiB, written and read in these orders, one per call."""
    row = np.random.default_rng(1).random(2048)

    def write(file):
        data = file.create_dataset("x", (written.size, row.size), row.dtype, chunks=(1, row.size))
        for index in written:
            data[index] = row

    def read(file):
        for index in read_in:
            file["x"][index]

    return write, read


def attributes():
    """1,000 groups of four attributes."""
    def write(file):
        for index in range(1000):
            group = file.create_group(f"group-{index}")
            for name in "abcd":
                group.attrs[name] = index

    def read(file):
        for group in file.values():
            for name in "abcd":
                group.attrs[name]

    return write, read


ORDER, RANDOM = np.arange(4096), np.random.default_rng(2).permutation(4096)
SMALL = {"4,096 chunks of 16 KiB": chunks(ORDER, ORDER), "the same in random order": chunks(RANDOM, RANDOM[::-1]),
         "1,000 groups, 4,000 attributes": attributes()}


def _work(barrier, arguments, request):
    buffer = np.random.default_rng(os.getpid()).integers(0, 256, request, "uint8")
    barrier.wait()
    yield transfer(*arguments, buffer)


def slowest(kind, driver, folder, request, total, settings, processes, buffer):
    """Returns the seconds of the slowest of `processes`, each with its own file."""
    jobs = [(kind, driver, os.path.join(folder, f"{driver}-{number}.h5"), request, total, settings)
            for number in range(processes)]
    if processes == 1:
        return transfer(*jobs[0], buffer)
    # Each process runs this module itself, as __mp_main__; if it were imported already, runpy would print a warning.
    seconds = []
    together(_work, [(job, request) for job in jobs], lambda _, value: seconds.append(value),
             ["h5py", "numpy", "weightfs.hdf5"])
    return max(seconds)


def list_of(parse_one):
    return lambda text: [parse_one(part) for part in text.split(",")]


def parse(arguments):
    parser = Parser(prog="python -m weightfs.tools.hdf5_bench", description=__doc__)
    add, numbers, sizes = parser.add_argument, list_of(number_from(1)), list_of(size)
    add("folder", type=directory, help="directory of the files, which are removed at the end")
    add("--requests", type=sizes, default="1M,4M,16M,64M", metavar="SIZE,…",
        help="bytes per request (default 1M,4M,16M,64M; the study goes to 1G)")
    add("--total", type=size, default="256M", metavar="SIZE", help="bytes per file, a multiple of each request "
        "(default 256M)")
    add("--processes", type=numbers, default="1,2", metavar="N,…", help="concurrent processes, each with its own file "
        "(default 1,2)")
    add("--threads", type=numbers, default="1,2,4", metavar="N,…", help="num_threads of the sweep (default 1,2,4)")
    add("--blocks", type=sizes, default="1M,4M", metavar="SIZE,…", help="block_size of the sweep (default 1M,4M)")
    add("--rounds", type=number_from(1), default=3, help="rounds, of which the median counts (default 3)")
    add("--small", action=argparse.BooleanOptionalAction, default=True,
        help="also measure small chunks and many attributes (default)")
    add("--json", action="store_true", help="print all measurements as JSON")
    given = parser.parse_args(arguments)
    for request in given.requests:
        if given.total % request:
            parser.error(f"--total {given.total} is not a multiple of the request {request}")
    return given


def measure_all(given, folder, rows, show):
    """Appends the rows."""
    common = {"num_threads": 2, "block_size": 1 << 20, "queue_depth": 32}
    buffer = np.random.default_rng(1).integers(0, 256, max(given.requests), "uint8")

    def measure(table, label, unit, drivers, work):
        """work(driver): the values of writes and of reads."""
        show(label)
        values = compare.measure({driver: [] for driver in drivers}, given.rounds, work)
        for at, kind in enumerate(KINDS):
            each = {driver: [pair[at] for pair in values[driver]] for driver in drivers}
            rows.append(compare.row(f"{kind}, {label}", unit, each, table=table, group=f"{kind}s, {table}"))

    def large(driver, request, settings, processes=1):
        total = given.total
        return [processes * total / slowest(kind, driver, folder, request, total, settings, processes, buffer)
                for kind in KINDS]

    for processes, request in itertools.product(given.processes, given.requests):
        measure("GB/s over the size of the requests", f"{size_text(request)}, processes: {processes}", "GB/s", DRIVERS,
                lambda driver: large(driver, request, common, processes))
        for name in os.listdir(folder):
            os.unlink(os.path.join(folder, name))
    for threads, block in itertools.product(given.threads, given.blocks):
        settings = {**common, "num_threads": threads, "block_size": block}
        measure("GB/s over the settings of the driver", f"threads {threads}, blocks of {size_text(block)}", "GB/s",
                ("weightfs", "handle"), lambda driver: large(driver, max(given.requests), settings))
    for label, both in SMALL.items() if given.small else ():
        measure("seconds of small requests", label, "s", HDF5_DRIVERS,
                lambda driver: timed(driver, os.path.join(folder, f"{driver}.h5"), common, *both))


def result_of(rows, given):
    summary = [row["id"] for row in rows if row["id"].endswith("processes: 1")][-2:]
    return compare.result("hdf5_bench", given.folder, given.total, given.rounds, rows, summary, notes=[
        f"HDF5 {h5py.version.hdf5_version}, h5py {h5py.version.version}, {size_text(given.total)} per file"])


def main(arguments=None):
    given = parse(arguments)

    def work(values, show):
        values["rows"] = []
        with tempfile.TemporaryDirectory(prefix="hdf5-bench-", dir=given.folder) as folder:
            measure_all(given, folder, values["rows"], show)

    return compare.main("hdf5_bench", given, work, lambda values: result_of(values["rows"], given))


if __name__ == "__main__":
    sys.exit(main())
