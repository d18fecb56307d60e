#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How time and memory grow with the files of a store, the extents of a file, the names of a directory, the devices of a
store, and the programs that use it. Each of them has three sizes, and each size a new store in DIR.

  bench/growth.py DIR [--only files extents names devices programs] [--scale 0.1] [--json]

Prints tables. Times are those of one run, in seconds; memory is that of the mount, in MiB."""
import json
import os
import resource
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[0] = str(ROOT)

from bench.machine import GIB, MIB, kernel_figure, sync_file  # noqa: E402
from bench.program import Parser, command, directory as existing  # noqa: E402
from bench.store import Store  # noqa: E402
from bench.tables import Table  # noqa: E402

BLOCK = 4096


def memory(store):
    return round(kernel_figure("VmRSS", store.daemon) / MIB)


def timed(function, *arguments):
    start = time.monotonic()
    function(*arguments)
    return round(time.monotonic() - start, 4)


def write_file(path, content=bytes(BLOCK)):
    with open(path, "xb", buffering=0) as file:
        if file.write(content) != len(content):
            raise RuntimeError(f"{path}: a short write")


def remount(store):
    store.unmount()
    store.mount_it()


def files(store, count):
    """Files of 4 KiB, a thousand in each directory."""
    def create():
        for number in range(count):
            if number % 1000 == 0:
                os.mkdir(mount / str(number // 1000))
            write_file(mount / str(number // 1000) / str(number))
        sync_file(mount)

    mount, catalog = Path(store.mount), Path(store.store, "meta")
    yield "create all", timed(create)
    yield "memory", memory(store)
    store.unmount()
    yield "catalog, MiB", round(sum(path.stat().st_size for path in catalog.iterdir()) / MIB)
    yield "mount", timed(store.mount_it)
    yield "open and read one", timed((mount / "0" / "0").read_bytes)
    yield "du", timed(command, "du", "-s", mount)
    yield "memory after du", memory(store)
    store.unmount()
    yield "verify --catalog", timed(command, store.program, "verify", "--catalog", store.store)


def extents(store, count):
    """A file of blocks with holes between them, written in order."""
    def write():
        descriptor = os.open(path, os.O_CREAT | os.O_WRONLY)
        for number in range(count):
            if os.pwrite(descriptor, bytes(BLOCK), 2 * number * BLOCK) != BLOCK:
                raise RuntimeError(f"{path}: a short write")
        os.fsync(descriptor)
        os.close(descriptor)

    path = Path(store.mount, "file")
    yield "write all", timed(write)
    yield "memory", memory(store)
    remount(store)
    empty = memory(store)
    with open(path, "rb") as file:
        yield "open, read first block", timed(file.read, BLOCK)
        yield "memory of the extents", memory(store) - empty
        yield "info", timed(command, store.program, "info", path)
    yield "truncate", timed(os.truncate, path, 0)
    yield "unlink", timed(os.unlink, path)
    sync_file(store.mount)
    yield "memory after unlink", memory(store)


def names(store, count):
    """Empty files in one directory."""
    def create():
        for number in range(count):
            os.close(os.open(directory / f"name{number}", os.O_CREAT | os.O_WRONLY))

    def remove():
        for number in range(count):
            os.unlink(directory / f"name{number}")

    directory, renamed = Path(store.mount, "directory"), Path(store.mount, "renamed")
    directory.mkdir()
    yield "create all", timed(create)
    yield "memory", memory(store)
    remount(store)
    yield "look up one", timed(os.stat, directory / f"name{count // 2}")
    yield "list", timed(os.listdir, directory)
    yield "rename one", timed(os.rename, directory / "name0", directory / "other")
    yield "rename the directory", timed(os.rename, directory, renamed)
    os.rename(renamed / "other", renamed / "name0")
    os.rename(renamed, directory)
    yield "remove all", timed(remove)
    yield "rmdir", timed(os.rmdir, directory)


def devices(store, count):
    """Devices that are files of 64 MiB."""
    words, path = [], Path(store.mount, "file")
    for number in range(count):
        words += ["--device", Path(store.path, f"device{number}")]
        with open(words[-1], "wb") as file:
            file.truncate(64 * MIB)
    store.unmount()
    command("rm", "-r", store.store)
    yield "format", timed(command, store.program, "format", store.store, *words)
    yield "mount", timed(store.mount_it)
    written = timed(write_file, path, bytes(32 * MIB))
    yield "write and fsync 32 MiB", round(written + timed(sync_file, path), 4)
    yield "memory", memory(store)
    yield "umount", timed(store.unmount)


def programs(store, count):
    """Processes that read 64 KiB at a time from a file each, 20,000 times together."""
    names, size, reads = [f"file{number}" for number in range(count)], 1000 * 16 * BLOCK, 20000 // count
    for name in names:
        write_file(Path(store.mount, name), bytes(size))
    remount(store)
    job = ["--rw=randread", "--fadvise_hint=0", f"--bs={16 * BLOCK}", f"--size={size}",
           f"--io_size={16 * BLOCK * reads}", "--norandommap", "--ioengine=psync", f"--directory={store.mount}",
           "--filename_format=file$jobnum", f"--numjobs={count}"]
    out = command("fio", "--name=growth", "--output-format=json", "--group_reporting", *job)
    yield "read all", json.loads(out[out.index("{"):])["jobs"][0]["read"]["runtime"] / 1000
    yield "memory", memory(store)


# Each table: its three sizes, and the size of the store.
TABLES = {files: ((10_000, 100_000, 1_000_000), lambda count: max(count * 2 * BLOCK, 256 * MIB)),
          extents: ((10_000, 100_000, 1_000_000), lambda count: max(count * 2 * BLOCK, 256 * MIB)),
          names: ((10_000, 100_000, 1_000_000), lambda _: 256 * MIB), devices: ((1, 16, 64), lambda _: 32 * MIB),
          programs: ((1, 10, 100), lambda count: count * 64 * MIB + GIB)}


def main():
    parser = Parser(prog="growth", description=__doc__)
    parser.add_argument("directory", type=existing, help="where the temporary stores are created")
    parser.add_argument("--program", type=os.path.abspath, default=ROOT / "build/release/bin/weightfs",
                        help="the program weightfs")
    parser.add_argument("--only", nargs="+", choices=[kind.__name__ for kind in TABLES])
    parser.add_argument("--scale", type=float, default=1, help="factor of all sizes (1)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    results = {}
    for kind, (counts, bytes_of) in TABLES.items():
        if args.only and kind.__name__ not in args.only:
            continue
        rows = results.setdefault(kind.__name__, {})
        for count in dict.fromkeys(max(1, int(count * args.scale)) for count in counts):
            with tempfile.TemporaryDirectory(prefix="growth-", dir=args.directory) as base, \
                    Store(args.program, f"{base}/store", bytes_of(count)) as store:
                rows[count] = dict(kind(store, count))
        if not args.json:
            columns = list(next(iter(rows.values())))
            print(f"{kind.__doc__}\n", Table("", [kind.__name__, *columns], [
                [f"{count:,}", *(f"{row[column]:,}" for column in columns)] for count, row in rows.items()]).text(),
                sep="\n", flush=True)
    if args.json:
        print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
