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
import json
import multiprocessing
import os
import sys
import tempfile
import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import h5py
import numpy as np

import weightfs
import weightfs.hdf5
from weightfs.bench import compare
from weightfs.bench.machine import drop_pages, size_text, sync_file
from weightfs.bench.program import Bar, Output, Parser, directory, number_from, size

MIB = 1 << 20
HDF5_DRIVERS = ("sec2", "stdio", "weightfs")
DRIVERS = (*HDF5_DRIVERS, "handle")
Settings = Dict[str, Any]


def list_of(parse_one: Callable[[str], int]) -> Callable[[str], List[int]]:
    return lambda text: [parse_one(part) for part in text.split(",")]


def opened(driver: str, path: str, mode: str, settings: Settings) -> h5py.File:
    if driver == "weightfs":
        return weightfs.hdf5.File(path, mode, **settings)
    return h5py.File(path, mode, driver=driver)


def write(driver: str, path: str, request: int, total: int, settings: Settings, buffer: np.ndarray) -> float:
    """Writes a new file of `total` bytes in requests of `request` bytes. Returns the seconds until it was durable."""
    part = buffer[:request]
    if os.path.exists(path):
        os.unlink(path)
    begin = time.perf_counter()
    if driver == "handle":
        with weightfs.aio_handle(**handle_settings(settings)) as handle, open(path, "xb") as stream:
            begin = time.perf_counter()   # the driver also keeps its handle from file to file
            for at in range(0, total, request):
                handle.write_from(part, stream.fileno(), at)
            os.fsync(stream.fileno())
            return time.perf_counter() - begin
    with opened(driver, path, "w", settings) as file:
        data = file.create_dataset("x", (total,), "uint8")
        for at in range(0, total, request):
            data.write_direct(part, dest_sel=np.s_[at:at + request])
    sync_file(path)
    return time.perf_counter() - begin


def read(driver: str, path: str, request: int, total: int, settings: Settings, buffer: np.ndarray) -> float:
    """Reads the file in requests of `request` bytes. Returns the seconds."""
    part = buffer[:request]
    drop_pages(path)
    begin = time.perf_counter()
    if driver == "handle":
        with weightfs.aio_handle(**handle_settings(settings)) as handle, open(path, "rb") as stream:
            begin = time.perf_counter()
            for at in range(0, total, request):
                handle.read_into(part, stream.fileno(), at)
            return time.perf_counter() - begin
    with opened(driver, path, "r", settings) as file:
        data = file["x"]
        for at in range(0, total, request):
            data.read_direct(part, source_sel=np.s_[at:at + request])
    return time.perf_counter() - begin


def handle_settings(settings: Settings) -> Settings:
    return {"block_size": settings["block_size"], "queue_depth": settings["queue_depth"],
            "intra_op_parallelism": settings["num_threads"]}


def chunks_in(written: np.ndarray, read_in: np.ndarray, driver: str, path: str,
              settings: Settings) -> Tuple[float, float]:
    """Writes and reads chunks of 16 KiB in these orders, one per call. Returns the seconds of both."""
    row = np.random.default_rng(1).random(2048)
    begin = time.perf_counter()
    with opened(driver, path, "w", settings) as file:
        data = file.create_dataset("x", (written.size, row.size), row.dtype, chunks=(1, row.size))
        for index in written:
            data[index] = row
    between = time.perf_counter()
    drop_pages(path)
    again = time.perf_counter()
    with opened(driver, path, "r", settings) as file:
        data = file["x"]
        for index in read_in:
            data[index]
    return between - begin, time.perf_counter() - again


def many_chunks(*arguments: Any) -> Tuple[float, float]:
    order = np.arange(4096)
    return chunks_in(order, order, *arguments)


def random_chunks(*arguments: Any) -> Tuple[float, float]:
    order = np.random.default_rng(2).permutation(4096)
    return chunks_in(order, order[::-1], *arguments)


def many_attributes(driver: str, path: str, settings: Settings) -> Tuple[float, float]:
    """Writes and reads 1,000 groups of four attributes. Returns the seconds of both."""
    begin = time.perf_counter()
    with opened(driver, path, "w", settings) as file:
        for index in range(1000):
            group = file.create_group(f"group-{index}")
            for name in "abcd":
                group.attrs[name] = index
    between = time.perf_counter()
    drop_pages(path)
    again = time.perf_counter()
    with opened(driver, path, "r", settings) as file:
        for group in file.values():
            for name in "abcd":
                group.attrs[name]
    return between - begin, time.perf_counter() - again


ACTIONS = {"write": write, "read": read}
SMALL = {"4,096 chunks of 16 KiB": many_chunks, "the same in random order": random_chunks,
         "1,000 groups, 4,000 attributes": many_attributes}


def _work(barrier: Any, results: Any, action: Callable[..., float], arguments: Tuple[Any, ...], request: int) -> None:
    buffer = np.random.default_rng(os.getpid()).integers(0, 256, request, "uint8")
    barrier.wait()
    results.put(action(*arguments, buffer))


def timed(action: Callable[..., float], driver: str, folder: str, request: int, total: int, settings: Settings,
          processes: int, buffer: np.ndarray) -> float:
    """Returns the seconds of the slowest of `processes`, each with its own file."""
    paths = [os.path.join(folder, f"{driver}-{number}.h5") for number in range(processes)]
    if processes == 1:
        return action(driver, paths[0], request, total, settings, buffer)
    # The fork server imports these once for all processes. Each process runs this module itself, as __mp_main__; if it
    # were imported already, runpy would print a warning.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["h5py", "numpy", "weightfs.hdf5"])
    barrier, results = context.Barrier(processes), context.Queue()
    workers = [context.Process(target=_work, args=(barrier, results, action, (driver, path, request, total, settings),
                                                   request)) for path in paths]
    for worker in workers:
        worker.start()
    seconds = [results.get(timeout=600) for _ in workers]
    for worker in workers:
        worker.join()
    return max(seconds)


def parse(arguments: Optional[List[str]]) -> argparse.Namespace:
    parser = Parser(prog="python -m weightfs.tools.hdf5_bench", description=__doc__)
    parser.add_argument("folder", type=directory, help="directory of the files, which are removed at the end")
    parser.add_argument("--requests", type=list_of(size), default="1M,4M,16M,64M", metavar="SIZE,…",
                        help="bytes per request (default 1M,4M,16M,64M; the study goes to 1G)")
    parser.add_argument("--total", type=size, default="256M", metavar="SIZE",
                        help="bytes per file, a multiple of each request (default 256M)")
    parser.add_argument("--processes", type=list_of(number_from(1)), default="1,2", metavar="N,…",
                        help="concurrent processes, each with its own file (default 1,2)")
    parser.add_argument("--threads", type=list_of(number_from(1)), default="1,2,4", metavar="N,…",
                        help="num_threads of the sweep (default 1,2,4)")
    parser.add_argument("--blocks", type=list_of(size), default="1M,4M", metavar="SIZE,…",
                        help="block_size of the sweep (default 1M,4M)")
    parser.add_argument("--rounds", type=number_from(1), default=3, help="rounds, of which the median counts (default 3)")
    parser.add_argument("--small", action=argparse.BooleanOptionalAction, default=True,
                        help="also measure small chunks and many attributes (default)")
    parser.add_argument("--json", nargs="?", const="-", metavar="FILE", help="write all results as JSON to FILE; without "
                        "FILE to standard output")
    given = parser.parse_args(arguments)
    for request in given.requests:
        if given.total % request:
            parser.error(f"--total {given.total} is not a multiple of the request {request}")
    return given


class Bench:
    """Runs the measurements in one directory, and collects their rows."""

    def __init__(self, given: argparse.Namespace, folder: str, show: Callable[[str], None]) -> None:
        self.given, self.folder, self.show = given, folder, show
        self.rows: List[Dict[str, Any]] = []
        self.settings: Settings = {"num_threads": 2, "block_size": MIB, "queue_depth": 32}
        self.buffer = np.random.default_rng(1).integers(0, 256, max(given.requests), "uint8")

    def measure(self, table: str, label: str, unit: str, drivers: Sequence[str],
                work: Callable[[str], Sequence[float]]) -> None:
        """work(driver): the values of writes and of reads."""
        self.show(label)
        values: Dict[str, List[Sequence[float]]] = {driver: [] for driver in drivers}
        compare.measure(values, self.given.rounds, work)
        self.rows += [compare.row(f"{kind}, {label}", unit, {driver: [pair[at] for pair in values[driver]]
                                                             for driver in drivers}, table=table, group=f"{kind}s, {table}")
                      for at, kind in enumerate(ACTIONS)]

    def large(self, driver: str, request: int, settings: Settings, processes: int = 1) -> Sequence[float]:
        """The rates of writing and reading large requests."""
        return [processes * self.given.total / timed(action, driver, self.folder, request, self.given.total, settings,
                                                     processes, self.buffer) for action in ACTIONS.values()]

    def measure_all(self) -> None:
        for processes, request in itertools.product(self.given.processes, self.given.requests):
            self.measure("GB/s over the size of the requests", f"{size_text(request)}, processes: {processes}", "GB/s",
                         DRIVERS, lambda driver: self.large(driver, request, self.settings, processes))
            for name in os.listdir(self.folder):
                os.unlink(os.path.join(self.folder, name))
        request = max(self.given.requests)
        for threads, block in itertools.product(self.given.threads, self.given.blocks):
            settings = {**self.settings, "num_threads": threads, "block_size": block}
            self.measure("GB/s over the settings of the driver", f"threads {threads}, blocks of {size_text(block)}",
                         "GB/s", ("weightfs", "handle"), lambda driver: self.large(driver, request, settings))
        for label, small in SMALL.items() if self.given.small else ():
            self.measure("seconds of small requests", label, "s", HDF5_DRIVERS,
                         lambda driver: small(driver, os.path.join(self.folder, f"{driver}.h5"), self.settings))


def main(arguments: Optional[List[str]] = None) -> int:
    given = parse(arguments)
    bar = Bar("hdf5_bench")
    with tempfile.TemporaryDirectory(prefix="hdf5-bench-", dir=given.folder) as folder:
        bench = Bench(given, folder, bar.show)
        bench.measure_all()
    bar.end()
    summary = [row["id"] for row in bench.rows if row["id"].endswith("processes: 1")][-2:]
    result = compare.result("hdf5_bench", given.rounds, bench.rows, summary, notes=[
        f"HDF5 {h5py.version.hdf5_version}, h5py {h5py.version.version}, {size_text(given.total)} per file"])
    if given.json not in (None, "-"):
        Output(given.json).write(json.dumps(result, indent=1))
    compare.output(result, given.json == "-")
    return 0


if __name__ == "__main__":
    sys.exit(main())
