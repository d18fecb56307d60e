# SPDX-License-Identifier: Apache-2.0
"""Compares HDF5's drivers, in the form of the GPUDirect driver's study. It measures write and read rates of one dataset
over request sizes by sec2, stdio, weightfs and a plain handle, and small requests by the three drivers.

The rounds of the drivers alternate, and the table shows medians and ratios. A write ends when the file is durable
(fsync). A read begins without pages of the file in the page cache. Needs h5py and numpy.

    python -m weightfs.tools.hdf5_bench /mnt/tensors
"""

import argparse
import os
import sys
import tempfile
import time

import h5py
import numpy as np

import weightfs
import weightfs.hdf5
from weightfs.bench import compare
from weightfs.bench.machine import size_text, sync_file
from weightfs.bench.program import size

HDF5_DRIVERS = ("sec2", "stdio", "weightfs")
DRIVERS = (*HDF5_DRIVERS, "handle")
KINDS = ("write", "read")
SETTINGS = {"num_threads": 2, "block_size": 1 << 20, "queue_depth": 32}


def opened(driver, path, mode):
    if driver == "weightfs":
        return weightfs.hdf5.File(path, mode, **SETTINGS)
    return h5py.File(path, mode, driver=driver)


def transfer(kind, driver, request, path, total, buffer):
    """Writes a new file of `total` bytes, or reads it, in requests of `request` bytes. Returns the seconds until it was
    durable, or read."""
    part, offsets, writes = buffer[:request], range(0, total, request), kind == "write"
    if not writes:
        sync_file(path, drop=True)
    begin = time.perf_counter()
    if driver == "handle":
        options = {"block_size": SETTINGS["block_size"], "queue_depth": SETTINGS["queue_depth"],
                   "intra_op_parallelism": SETTINGS["num_threads"]}
        with weightfs.aio_handle(**options) as handle, open(path, "xb" if writes else "rb") as stream:
            begin = time.perf_counter()   # the driver also keeps its handle from file to file
            for at in offsets:
                (handle.write_from if writes else handle.read_into)(part, stream.fileno(), at)
            if writes:
                os.fsync(stream.fileno())
            return time.perf_counter() - begin
    with opened(driver, path, "w" if writes else "r") as file:
        data = file.create_dataset("x", (total,), "uint8") if writes else file["x"]
        for at in offsets:
            if writes:
                data.write_direct(part, dest_sel=np.s_[at:at + request])
            else:
                data.read_direct(part, source_sel=np.s_[at:at + request])
    if writes:
        sync_file(path)
    return time.perf_counter() - begin


def timed(driver, path, write, read):
    """Calls both with an open file. Returns the seconds of each, with those of opening and closing."""
    begin = time.perf_counter()
    with opened(driver, path, "w") as file:
        write(file)
    between = time.perf_counter()
    sync_file(path, drop=True)
    again = time.perf_counter()
    with opened(driver, path, "r") as file:
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


def result_of(values, args):
    """values: (driver, size of the requests, or a name of SMALL) -> the pairs of a write and a read."""
    rows = []
    for what in dict.fromkeys(what for _, what in values):
        label, unit, table = ((what, "s", "seconds of small requests") if what in SMALL else
                              (size_text(what), "GB/s", "GB/s over the size of the requests"))
        rows += [compare.row(f"{kind}, {label}", unit, {
            driver: [pair[at] for pair in values[driver, what]] for driver in DRIVERS if (driver, what) in values},
            table=table) for at, kind in enumerate(KINDS)]
    largest = 2 * len(args.requests)
    return compare.result("hdf5_bench", args.directory, args.size, len(next(iter(values.values()))), rows,
                          [row["id"] for row in rows[largest - 2:largest]], notes=[
                              f"HDF5 {h5py.version.hdf5_version}, h5py {h5py.version.version}"])


def main(arguments=None):
    parser = compare.parser("hdf5_bench", __doc__, "bytes per file, a multiple of each request", "256M",
                            "rounds, of which the median counts", 3)
    parser.add_argument("--requests", type=lambda text: list(map(size, text.split(","))), default="1M,4M,16M,64M",
                        metavar="SIZE,…", help="bytes per request (default 1M,4M,16M,64M; the study goes to 1G)")
    parser.add_argument("--small", action=argparse.BooleanOptionalAction, default=True,
                        help="also measure small chunks and many attributes (default)")
    args = parser.parse_args(arguments)
    for request in args.requests:
        if args.size % request:
            parser.error(f"--size {args.size} is not a multiple of the request {request}")

    def work(values, show):
        values |= {(driver, request): [] for request in args.requests for driver in DRIVERS}
        values |= {(driver, name): [] for name in SMALL for driver in HDF5_DRIVERS if args.small}
        buffer = np.random.default_rng(1).integers(0, 256, max(args.requests), "uint8")
        with tempfile.TemporaryDirectory(prefix="hdf5-bench-", dir=args.directory) as folder:
            def write_and_read(way):
                driver, what = way
                path = os.path.join(folder, f"{driver}.h5")
                if os.path.exists(path):
                    os.unlink(path)
                if what in SMALL:
                    return timed(driver, path, *SMALL[what])
                return [args.size / transfer(kind, driver, what, path, args.size, buffer) for kind in KINDS]

            compare.measure(values, args.rounds, write_and_read, show)

    return compare.main("hdf5_bench", args, work, lambda values: result_of(values, args))


if __name__ == "__main__":
    sys.exit(main())
