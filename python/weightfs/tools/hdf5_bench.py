# SPDX-License-Identifier: Apache-2.0
"""Measures HDF5's drivers beside each other, in the form of the GPUDirect driver's study: write and read rates of one
dataset over request sizes, by sec2, stdio, weightfs and a plain handle; settings of the driver swept; small requests.

Rounds of all drivers alternate, and the table shows medians and ratios. Writes end when everything is durable (fsync).
Reads begin with no page of the file in the page cache. Needs h5py and numpy.

    python -m weightfs.tools.hdf5_bench /mnt/tensors
"""

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from typing import Any, Callable, Dict, List, Tuple

import h5py
import numpy as np

import weightfs
import weightfs.hdf5

MIB = 1 << 20
DRIVERS = ("sec2", "stdio", "weightfs", "handle")
Settings = Dict[str, Any]


def size_of(text: str) -> int:
    number, factor = text.rstrip("KMG"), {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:], 1)
    if not number.isdigit() or int(number) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no size: a number with K, M or G is needed")
    return int(number) * factor


def sizes_of(text: str) -> List[int]:
    return [size_of(part) for part in text.split(",")]


def counts_of(text: str) -> List[int]:
    if not all(part.isdigit() and int(part) > 0 for part in text.split(",")):
        raise argparse.ArgumentTypeError(f"{text!r}: whole numbers from 1 on are needed, separated by commas")
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


def drop_pages(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
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
            begin = time.perf_counter()   # the driver keeps its handle from file to file, too
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
    """Reads the file again in requests of `request` bytes. Returns seconds."""
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


def chunks_in(written: np.ndarray, read_in: np.ndarray, driver: str, path: str, settings: Settings) -> Tuple[float, float]:
    """4,096 chunks of 16 KiB, each written and read by a call of its own, in these orders."""
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
    """1,000 groups of four attributes."""
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


SMALL = {"4,096 chunks of 16 KiB": many_chunks, "the same in random order": random_chunks,
         "1,000 groups, 4,000 attributes": many_attributes}


def _work(barrier: Any, results: Any, action: Callable[..., float], arguments: Tuple[Any, ...], request: int) -> None:
    buffer = np.random.default_rng(os.getpid()).integers(0, 256, request, "uint8")
    barrier.wait()
    results.put(action(*arguments, buffer))


def timed(action: Callable[..., float], driver: str, folder: str, request: int, total: int, settings: Settings,
          processes: int, buffer: np.ndarray) -> float:
    """The seconds of the slowest of `processes`, each with a file of its own."""
    paths = [os.path.join(folder, f"{driver}-{number}.h5") for number in range(processes)]
    if processes == 1:
        return action(driver, paths[0], request, total, settings, buffer)
    # Processes of their own that need not import everything anew.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["weightfs.tools.hdf5_bench"])
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
    """Collects rates, prints a row of the table for each measurement."""

    def __init__(self) -> None:
        self.rows: List[Dict[str, Any]] = []

    def add(self, kind: str, label: str, rates: Dict[str, List[float]], unit: str, **details: Any) -> None:
        medians = {name: statistics.median(values) for name, values in rates.items()}
        # A ratio of the same round: neighbors saw the same machine.
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
    parser.add_argument("folder", help="where the files are written and read; they are removed at the end")
    parser.add_argument("--requests", type=sizes_of, default=[MIB, 4 * MIB, 16 * MIB, 64 * MIB], metavar="SIZE,…",
                        help="bytes of a request (default 1M,4M,16M,64M; the study goes to 1G)")
    parser.add_argument("--total", type=size_of, default=256 * MIB, metavar="SIZE",
                        help="bytes of a file, a multiple of each request (default 256M)")
    parser.add_argument("--processes", type=counts_of, default=[1, 2], metavar="N,…",
                        help="programs at once, each with a file of its own (default 1,2)")
    parser.add_argument("--threads", type=counts_of, default=[1, 2, 4], metavar="N,…",
                        help="num_threads of the sweep (default 1,2,4)")
    parser.add_argument("--blocks", type=sizes_of, default=[MIB, 4 * MIB], metavar="SIZE,…",
                        help="block_size of the sweep (default 1M,4M)")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each; the median counts (default 3)")
    parser.add_argument("--small", action=argparse.BooleanOptionalAction, default=True,
                        help="measure small chunks and many attributes, too (default)")
    parser.add_argument("--json", metavar="FILE", help="write everything there as JSON")
    given = parser.parse_args(arguments)
    if given.rounds < 1:
        parser.error("--rounds begins at 1")
    wrong = [request for request in given.requests if given.total % request]
    if wrong:
        parser.error(f"--total {given.total} is no multiple of the request {wrong[0]}")
    if not os.path.isdir(given.folder):
        parser.error(f"{given.folder}: no such directory")
    return given


def main(arguments: List[str]) -> int:
    given = parse(arguments)
    report = Report()
    settings: Settings = {"num_threads": 2, "block_size": MIB, "queue_depth": 32}
    buffer = np.random.default_rng(1).integers(0, 256, max(given.requests), "uint8")
    with tempfile.TemporaryDirectory(prefix="hdf5-bench-", dir=given.folder) as folder:
        for processes in given.processes:
            for request in given.requests:
                actions = {"write": write, "read": read}
                rates: Dict[str, Dict[str, List[float]]] = {kind: {name: [] for name in DRIVERS} for kind in actions}
                for _ in range(given.rounds):
                    for kind, action in actions.items():
                        for driver in DRIVERS:
                            seconds = timed(action, driver, folder, request, given.total, settings, processes, buffer)
                            rates[kind][driver].append(processes * given.total / seconds / 1e9)
                for kind in actions:
                    report.add(kind, f"{request >> 10} KiB, processes: {processes}", rates[kind], "GB/s",
                               request=request, processes=processes)
                for name in os.listdir(folder):
                    os.unlink(os.path.join(folder, name))
        request = max(given.requests)
        for threads in given.threads:
            for block in given.blocks:
                swept = {**settings, "num_threads": threads, "block_size": block}
                rates = {kind: {name: [] for name in ("weightfs", "handle")} for kind in ("write", "read")}
                for _ in range(given.rounds):
                    for kind, action in (("write", write), ("read", read)):
                        for driver in ("weightfs", "handle"):
                            seconds = timed(action, driver, folder, request, given.total, swept, 1, buffer)
                            rates[kind][driver].append(given.total / seconds / 1e9)
                for kind in rates:
                    report.add(kind, f"threads {threads}, blocks of {block >> 10} KiB", rates[kind], "GB/s",
                               request=request, num_threads=threads, block_size=block)
        for label, small in SMALL.items() if given.small else ():
            rates = {kind: {name: [] for name in DRIVERS[:3]} for kind in ("write", "read")}
            for _ in range(given.rounds):
                for driver in DRIVERS[:3]:
                    written, read_again = small(driver, os.path.join(folder, f"{driver}.h5"), settings)
                    rates["write"][driver].append(1 / written)
                    rates["read"][driver].append(1 / read_again)
            for kind in rates:
                report.add(kind, label, rates[kind], "1/s")
    if given.json:
        with open(given.json, "w", encoding="utf-8") as stream:
            json.dump({"hdf5": h5py.version.hdf5_version, "h5py": h5py.version.version, "total": given.total,
                       "settings": settings, "rows": report.rows}, stream, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
