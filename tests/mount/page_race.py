# SPDX-License-Identifier: Apache-2.0
"""Two processes change different bytes of every page at about the same time: one by pwrite(2), or in another way that
goes past the page cache, one through a shared mapping. Neither change may be lost.

Usage: page_race.py HOW FILE PAGES, with HOW one of CHANGES or "map"; begins when a line comes from standard input."""

import mmap
import os
import subprocess
import sys

PAGE = 4096
DIRECT_AT, MAPPED_AT = 1024, 3072      # offsets in each page
DIRECT, MAPPED = b"DIRECT..", b"MAPPED.."


def by_pwrite(path, pages):
    descriptor = os.open(path, os.O_RDWR)
    for page in range(pages):
        os.pwrite(descriptor, DIRECT, page * PAGE + DIRECT_AT)


def by_write_only(path, pages):
    """A write-only descriptor cannot be mapped, and writes past the page cache on every kernel."""
    descriptor = os.open(path, os.O_WRONLY)
    for page in range(pages):
        os.pwrite(descriptor, DIRECT, page * PAGE + DIRECT_AT)


def by_copy(path, pages):
    """Copies inside the filesystem."""
    source = os.open(path + ".source", os.O_RDWR | os.O_CREAT)
    os.write(source, DIRECT)
    descriptor = os.open(path, os.O_RDWR)
    for page in range(pages):
        os.copy_file_range(source, descriptor, len(DIRECT), 0, page * PAGE + DIRECT_AT)


CHANGES = {"pwrite": by_pwrite, "write-only": by_write_only, "copy": by_copy}


def by_mapping(path, pages):
    descriptor = os.open(path, os.O_RDWR)
    with mmap.mmap(descriptor, pages * PAGE) as mapping:
        for page in range(pages):
            at = page * PAGE + MAPPED_AT
            mapping[at:at + len(MAPPED)] = MAPPED
        mapping.flush()


def lost(how, path, pages):
    """Runs both over a file of `pages` pages. The pages whose change of each kind is lost afterwards."""
    with open(path, "wb") as stream:
        stream.write(bytes(pages * PAGE))
    commands = [[sys.executable, __file__, name, path, str(pages)] for name in (how, "map")]
    workers = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for command in commands]
    for worker in workers:
        assert worker.stdout.read(1) == b"r", "it ended before it was ready"
    for worker in workers:
        worker.stdin.write(b"\n")
        worker.stdin.flush()
    for worker in workers:
        worker.communicate()
        assert worker.returncode == 0
    with open(path, "rb") as stream:
        data = stream.read()
    pages_of = {kind: [page for page in range(pages) if not data.startswith(kind, page * PAGE + at)]
                for kind, at in ((DIRECT, DIRECT_AT), (MAPPED, MAPPED_AT))}
    return pages_of[DIRECT], pages_of[MAPPED]


if __name__ == "__main__":
    sys.stdout.write("r")
    sys.stdout.flush()
    sys.stdin.readline()
    {**CHANGES, "map": by_mapping}[sys.argv[1]](sys.argv[2], int(sys.argv[3]))
