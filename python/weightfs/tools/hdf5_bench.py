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
import statistics
import sys
import tempfile
import time
from typing import Any, Callable, Dict, List, Sequence, Tuple

import h5py
import numpy as np

import weightfs
import weightfs.hdf5
from weightfs._numbers import parse_size
from weightfs.tools._pages import drop_pages

MIB = 1 << 20
HDF5_DRIVERS = ("sec2", "stdio", "weightfs")
DRIVERS = (*HDF5_DRIVERS, "handle")
Settings = Dict[str, Any]
Rates = Dict[str, Dict[str, List[float]]]   # by "write" or "read", and by driver


def size_of(text: str) -> int:
    try:
        return parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def sizes_of(text: str) -> List[int]:
    return [size_of(part) for part in text.split(",")]


def counts_of(text: str) -> List[int]:
    if not all(part.isdigit() and int(part) > 0 for part in text.split(",")):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of positive whole numbers, separated by commas")
    return [int(part) for part in text.split(",")]


def opened(driver: str, path: str, mode: str, settings: Settings) -> h5py.File:
    if driver == "weightfs":
        return weightfs.hdf5.File(path, mode, **settings)
    return h5py.File(path, mode, driver=driver)


def make_durable(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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
    make_durable(path)
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


class Report:
    """Collects rates and prints one row of the table per measurement."""

    def __init__(self) -> None:
        self.rows: List[Dict[str, Any]] = []

    def add(self, kind: str, label: str, rates: Dict[str, List[float]], unit: str, **details: Any) -> None:
        medians = {name: statistics.median(values) for name, values in rates.items()}
        # Ratios within a round: its measurements ran under similar load.
        ratios = {name: statistics.median(ours / theirs for ours, theirs in zip(rates["weightfs"], rates[name]))
                  for name in rates if name != "weightfs"}
        self.rows.append({"kind": kind, "label": label, "unit": unit, "median": medians, "rounds": rates,
                          "weightfs_over": ratios, **details})
        numbers = "  ".join(f"{name} {value:8.2f}" for name, value in medians.items())
        print(f"{kind:6} {label:32} {numbers} {unit:5}  weightfs over " +
              ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items()), flush=True)


def parse(arguments: List[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m weightfs.tools.hdf5_bench", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="directory of the files, which are removed at the end")
    parser.add_argument("--requests", type=sizes_of, default=[MIB, 4 * MIB, 16 * MIB, 64 * MIB], metavar="SIZE,…",
                        help="bytes per request (default 1M,4M,16M,64M; the study goes to 1G)")
    parser.add_argument("--total", type=size_of, default=256 * MIB, metavar="SIZE",
                        help="bytes per file, a multiple of each request (default 256M)")
    parser.add_argument("--processes", type=counts_of, default=[1, 2], metavar="N,…",
                        help="concurrent processes, each with its own file (default 1,2)")
    parser.add_argument("--threads", type=counts_of, default=[1, 2, 4], metavar="N,…",
                        help="num_threads of the sweep (default 1,2,4)")
    parser.add_argument("--blocks", type=sizes_of, default=[MIB, 4 * MIB], metavar="SIZE,…",
                        help="block_size of the sweep (default 1M,4M)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds, of which the median counts (default 3)")
    parser.add_argument("--small", action=argparse.BooleanOptionalAction, default=True,
                        help="also measure small chunks and many attributes (default)")
    parser.add_argument("--json", metavar="FILE", help="write all results to FILE as JSON")
    given = parser.parse_args(arguments)
    if given.rounds < 1:
        parser.error("--rounds must be at least 1")
    wrong = [request for request in given.requests if given.total % request]
    if wrong:
        parser.error(f"--total {given.total} is not a multiple of the request {wrong[0]}")
    if not os.path.isdir(given.folder):
        parser.error(f"{given.folder}: no such directory")
    return given


class Bench:
    """Runs the measurements in one directory."""

    def __init__(self, given: argparse.Namespace, folder: str) -> None:
        self.given, self.folder = given, folder
        self.report = Report()
        self.settings: Settings = {"num_threads": 2, "block_size": MIB, "queue_depth": 32}
        self.buffer = np.random.default_rng(1).integers(0, 256, max(given.requests), "uint8")

    def rates(self, drivers: Sequence[str], request: int, settings: Settings, processes: int = 1) -> Rates:
        """Measures writes and reads of large requests, in GB/s."""
        rates: Rates = {kind: {driver: [] for driver in drivers} for kind in ACTIONS}
        for _, (kind, action), driver in itertools.product(range(self.given.rounds), ACTIONS.items(), drivers):
            seconds = timed(action, driver, self.folder, request, self.given.total, settings, processes, self.buffer)
            rates[kind][driver].append(processes * self.given.total / seconds / 1e9)
        return rates

    def measure_requests(self) -> None:
        for processes, request in itertools.product(self.given.processes, self.given.requests):
            rates = self.rates(DRIVERS, request, self.settings, processes)
            for kind in rates:
                self.report.add(kind, f"{request >> 10} KiB, processes: {processes}", rates[kind], "GB/s",
                                request=request, processes=processes)
            for name in os.listdir(self.folder):
                os.unlink(os.path.join(self.folder, name))

    def measure_settings(self) -> None:
        request = max(self.given.requests)
        for threads, block in itertools.product(self.given.threads, self.given.blocks):
            rates = self.rates(("weightfs", "handle"), request,
                               {**self.settings, "num_threads": threads, "block_size": block})
            for kind in rates:
                self.report.add(kind, f"threads {threads}, blocks of {block >> 10} KiB", rates[kind], "GB/s",
                                request=request, num_threads=threads, block_size=block)

    def measure_small(self) -> None:
        for label, small in SMALL.items():
            rates: Rates = {kind: {driver: [] for driver in HDF5_DRIVERS} for kind in ACTIONS}
            for _, driver in itertools.product(range(self.given.rounds), HDF5_DRIVERS):
                seconds = small(driver, os.path.join(self.folder, f"{driver}.h5"), self.settings)
                for kind, spent in zip(rates, seconds):
                    rates[kind][driver].append(1 / spent)
            for kind in rates:
                self.report.add(kind, label, rates[kind], "1/s")

    def save(self, path: str) -> None:
        with open(path, "w", encoding="utf-8") as stream:
            json.dump({"hdf5": h5py.version.hdf5_version, "h5py": h5py.version.version, "total": self.given.total,
                       "settings": self.settings, "rows": self.report.rows}, stream, indent=1)


def main(arguments: List[str]) -> int:
    given = parse(arguments)
    with tempfile.TemporaryDirectory(prefix="hdf5-bench-", dir=given.folder) as folder:
        bench = Bench(given, folder)
        bench.measure_requests()
        bench.measure_settings()
        if given.small:
            bench.measure_small()
    if given.json:
        bench.save(given.json)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
