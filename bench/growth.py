#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How time and memory grow with the files of a store, the extents of a file, the names of a directory, the devices of a
store, and the programs that use it. Each of them has three sizes, and each size a new store in DIR.

  bench/growth.py DIR [--only files extents names devices programs] [--scale 0.1] [--json]

Prints tables in Markdown. Times are those of one run, in seconds; memory is that of the mount, in MiB."""
import argparse
import json
import multiprocessing
import os
import resource
import subprocess
import tempfile
import time
from pathlib import Path

from suite.system import GIB, MIB, kernel_figure
from temporary_store import mounted, new_store

ROOT = Path(__file__).resolve().parents[1]
BLOCK = 4096


def memory(pid):
    return round(kernel_figure("VmRSS", pid) / MIB)


def timed(function, *arguments):
    start = time.monotonic()
    function(*arguments)
    return round(time.monotonic() - start, 4)


def run(*words):
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)


def write_file(path, content=bytes(BLOCK)):
    with open(path, "xb", buffering=0) as file:
        if file.write(content) != len(content):
            raise RuntimeError(f"{path}: a short write")


def flush(directory):
    descriptor = os.open(directory, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def catalog_size(store):
    return round(sum(path.stat().st_size for path in (store / "meta").iterdir()) / MIB)


def files(program, base, count):
    """Files of 4 KiB, a thousand in each directory."""
    def create():
        for number in range(count):
            if number % 1000 == 0:
                os.mkdir(mount / str(number // 1000))
            write_file(mount / str(number // 1000) / str(number))
        flush(mount)

    row = {}
    with new_store(program, base, max(count * 2 * BLOCK, 256 * MIB)) as (mount, pid):
        row["create all"] = timed(create)
        row["memory"] = memory(pid)
    row["catalog, MiB"] = catalog_size(base / "store")
    start = time.monotonic()
    with mounted(program, base / "store", mount) as pid:
        row["mount"] = round(time.monotonic() - start, 3)
        row["open and read one"] = timed((mount / "0" / "0").read_bytes)
        row["du"] = timed(run, "du", "-s", mount)
        row["memory after du"] = memory(pid)
    row["fsck"] = timed(run, program, "fsck", base / "store")
    return row


def extents(program, base, count):
    """A file of blocks with holes between them, written in order."""
    def write():
        descriptor = os.open(path, os.O_CREAT | os.O_WRONLY)
        for number in range(count):
            if os.pwrite(descriptor, bytes(BLOCK), 2 * number * BLOCK) != BLOCK:
                raise RuntimeError(f"{path}: a short write")
        os.fsync(descriptor)
        os.close(descriptor)

    row = {}
    with new_store(program, base, max(count * 2 * BLOCK, 256 * MIB)) as (mount, pid):
        path = mount / "file"
        row["write all"] = timed(write)
        row["memory"] = memory(pid)
    with mounted(program, base / "store", mount) as pid:
        empty = memory(pid)
        with open(path, "rb") as file:
            row["open, read first block"] = timed(file.read, BLOCK)
            row["memory of the extents"] = memory(pid) - empty
            row["info"] = timed(run, program, "info", path)
        row["truncate"] = timed(os.truncate, path, 0)
        row["unlink"] = timed(os.unlink, path)
        flush(mount)
        row["memory after unlink"] = memory(pid)
    return row


def names(program, base, count):
    """Empty files in one directory."""
    def create():
        for number in range(count):
            os.close(os.open(directory / f"name{number}", os.O_CREAT | os.O_WRONLY))

    def remove():
        for number in range(count):
            os.unlink(directory / f"name{number}")

    row = {}
    with new_store(program, base, 256 * MIB) as (mount, pid):
        directory = mount / "directory"
        directory.mkdir()
        row["create all"] = timed(create)
        row["memory"] = memory(pid)
    with mounted(program, base / "store", mount):
        row["look up one"] = timed(os.stat, directory / f"name{count // 2}")
        row["list"] = timed(os.listdir, directory)
        row["rename one"] = timed(os.rename, directory / "name0", directory / "other")
        row["rename the directory"] = timed(os.rename, directory, mount / "renamed")
        os.rename(mount / "renamed" / "other", mount / "renamed" / "name0")
        os.rename(mount / "renamed", directory)
        row["remove all"] = timed(remove)
        row["rmdir"] = timed(os.rmdir, directory)
    return row


def devices(program, base, count):
    """Devices that are files of 64 MiB."""
    row, words = {}, []
    for number in range(count):
        path = base / f"device{number}"
        with open(path, "wb") as file:
            file.truncate(64 * MIB)
        words += ["--device", str(path)]
    mount = base / "mount"
    mount.mkdir()
    row["format"] = timed(run, program, "format", base / "store", *words)
    start = time.monotonic()
    with mounted(program, base / "store", mount) as pid:
        row["mount"] = round(time.monotonic() - start, 3)
        written = timed(write_file, mount / "file", bytes(32 * MIB))
        row["write and fsync 32 MiB"] = round(written + timed(flush, mount / "file"), 4)
        row["memory"] = memory(pid)
        start = time.monotonic()
    row["umount"] = round(time.monotonic() - start, 3)
    return row


def read_some(path, reads, ready, begin):
    descriptor = os.open(path, os.O_RDONLY)
    ready.release()
    begin.wait()
    for number in range(reads):
        if len(os.pread(descriptor, 16 * BLOCK, number * 997 % 1000 * 16 * BLOCK)) != 16 * BLOCK:
            raise RuntimeError(f"{path}: a short read")


def programs(program, base, count):
    """Processes that read 64 KiB at a time from a file each, 20,000 times together."""
    ready, begin = multiprocessing.Semaphore(0), multiprocessing.Event()
    with new_store(program, base, count * 64 * MIB + GIB) as (mount, _):
        for number in range(count):
            write_file(mount / str(number), bytes(1000 * 16 * BLOCK))
    with mounted(program, base / "store", mount) as pid:
        readers = [multiprocessing.Process(target=read_some, args=(mount / str(number), 20000 // count, ready, begin))
                   for number in range(count)]
        for reader in readers:
            reader.start()
        for _ in readers:
            ready.acquire()
        start = time.monotonic()
        begin.set()
        for reader in readers:
            reader.join()
        if any(reader.exitcode for reader in readers):
            raise RuntimeError("a reader failed")
        return {"read all": round(time.monotonic() - start, 3), "memory": memory(pid)}


TABLES = {files: (10_000, 100_000, 1_000_000), extents: (10_000, 100_000, 1_000_000),
          names: (10_000, 100_000, 1_000_000), devices: (1, 16, 64), programs: (1, 10, 100)}


def table(kind, rows):
    columns = list(next(iter(rows.values())))
    yield f"| {kind.__name__} | " + " | ".join(columns) + " |"
    yield "|---" * (len(columns) + 1) + "|"
    for count, row in rows.items():
        yield f"| {count:,} | " + " | ".join(f"{row[column]:,}" for column in columns) + " |"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, help="where the temporary stores are created")
    parser.add_argument("--program", type=Path, default=ROOT / "build/release/bin/weightfs",
                        help="the program weightfs")
    parser.add_argument("--only", nargs="+", choices=[kind.__name__ for kind in TABLES])
    parser.add_argument("--scale", type=float, default=1, help="factor of all sizes (1)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    results = {}
    for kind, sizes in TABLES.items():
        if args.only and kind.__name__ not in args.only:
            continue
        rows = results.setdefault(kind.__name__, {})
        for size in dict.fromkeys(max(1, int(size * args.scale)) for size in sizes):
            with tempfile.TemporaryDirectory(prefix="growth-", dir=args.directory) as base:
                rows[size] = kind(args.program.absolute(), Path(base), size)
        if not args.json:
            print(f"{kind.__doc__}\n", *table(kind, rows), "", sep="\n", flush=True)
    if args.json:
        print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
