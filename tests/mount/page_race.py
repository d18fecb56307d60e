# SPDX-License-Identifier: Apache-2.0
"""Processes that change one page in different ways at about the same time: one by pwrite(2) or another call that
bypasses the page cache, one through a shared mapping. No change may be lost.

Usage: page_race.py ROLE FILE PAGES, with ROLE one of ROLES. It begins when it receives a line on standard input."""

import contextlib
import ctypes
import mmap
import os
import subprocess
import sys
import threading

PAGE = 4096
DIRECT_AT, MAPPED_AT = 1024, 3072      # offsets in each page
OLD, DIRECT, MAPPED = b"........", b"DIRECT..", b"MAPPED.."
FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE, FALLOC_FL_ZERO_RANGE = 1, 2, 16
SYNC_FILE_RANGE_WRITE = 2
HANG_SECONDS = 120

libc = ctypes.CDLL(None, use_errno=True)
libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
libc.sync_file_range.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]


def checked(result):
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def by_pwrite(path, pages):
    descriptor = os.open(path, os.O_RDWR)
    for page in range(pages):
        os.pwrite(descriptor, DIRECT, page * PAGE + DIRECT_AT)


def by_write_only(path, pages):
    """Uses a write-only descriptor, which cannot be mapped, so every kernel writes past the page cache."""
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


def by_copy_of_pages(path, pages):
    """Copies whole pages, all at once."""
    source = os.open(path + ".source", os.O_RDWR | os.O_CREAT)
    os.pwrite(source, (bytes(DIRECT_AT) + DIRECT).ljust(PAGE, b"\0") * pages, 0)
    descriptor = os.open(path, os.O_WRONLY)
    at = 0
    while at < pages * PAGE:
        at += os.copy_file_range(source, descriptor, pages * PAGE - at, at, at)


def fallocate_each(path, pages, mode):
    descriptor = os.open(path, os.O_RDWR)
    for page in range(pages):
        checked(libc.fallocate(descriptor, mode, page * PAGE + DIRECT_AT, len(DIRECT)))


def by_punch(path, pages):
    fallocate_each(path, pages, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE)


def by_zero(path, pages):
    fallocate_each(path, pages, FALLOC_FL_ZERO_RANGE)


# For each change, what it leaves at DIRECT_AT, and whether it keeps the rest of the page.
CHANGES = {
    "pwrite": (by_pwrite, DIRECT, True),
    "write-only": (by_write_only, DIRECT, True),
    "copy": (by_copy, DIRECT, True),
    "copy whole pages": (by_copy_of_pages, DIRECT, False),
    "punch": (by_punch, bytes(len(DIRECT)), True),
    "zero": (by_zero, bytes(len(DIRECT)), True),
}


def by_mapping(path, pages):
    descriptor = os.open(path, os.O_RDWR)
    with mmap.mmap(descriptor, pages * PAGE) as mapping:
        for page in range(pages):
            at = page * PAGE + MAPPED_AT
            mapping[at:at + len(MAPPED)] = MAPPED
        mapping.flush()


def until_input_ends(step):
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    while not ended.is_set():
        step()


def send_dirty_pages(path, pages):
    """Makes the kernel write dirty pages back, which it does without holding the inode's lock."""
    descriptor = os.open(path, os.O_RDWR)
    until_input_ends(lambda: checked(libc.sync_file_range(descriptor, 0, pages * PAGE, SYNC_FILE_RANGE_WRITE)))


def touch(path, pages):
    """Brings pages back into the page cache."""
    with open(path, "rb") as stream, mmap.mmap(stream.fileno(), pages * PAGE, prot=mmap.PROT_READ) as mapping:
        until_input_ends(lambda: [mapping[page * PAGE] for page in range(pages)])


def number(data):
    return int.from_bytes(data, sys.byteorder)


def word(value):
    return value.to_bytes(8, sys.byteorder)


def send_by_pwrite(path, rounds):
    """Writes odd numbers to the first word of the file, each after the other process has answered the previous one."""
    descriptor = os.open(path, os.O_RDWR)
    for value in range(1, 2 * rounds, 2):
        os.pwrite(descriptor, word(value), 0)
        while number(os.pread(descriptor, 8, 0)) != value + 1:
            os.sched_yield()


def answer(path, rounds, see):
    """Answers each number that `see(descriptor, mapping)` shows with the next number, through a mapping."""
    descriptor = os.open(path, os.O_RDWR)
    with mmap.mmap(descriptor, PAGE) as mapping:
        for value in range(1, 2 * rounds, 2):
            while number(see(descriptor, mapping)) != value:
                os.sched_yield()
            mapping[0:8] = word(value + 1)


# How the answering process reads a number.
SEEN = {"mapping": lambda descriptor, mapping: mapping[0:8], "pread": lambda descriptor, mapping: os.pread(descriptor, 8, 0)}

ROLES = {
    **{name: change for name, (change, _, _) in CHANGES.items()},
    **{f"answer by {name}": lambda path, rounds, see=see: answer(path, rounds, see) for name, see in SEEN.items()},
    "map": by_mapping, "send dirty pages": send_dirty_pages, "touch": touch, "ask": send_by_pwrite,
}


@contextlib.contextmanager
def running(*roles):
    """Starts processes at the same time; each role has a file and a number of pages or rounds."""
    workers = []
    try:
        for name, path, count in roles:
            workers.append(subprocess.Popen([sys.executable, __file__, name, path, str(count)],
                                            stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        for worker in workers:
            assert worker.stdout.read(1) == b"r", "it ended before it was ready"
        for worker in workers:
            worker.stdin.write(b"\n")
            worker.stdin.flush()
        yield workers
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()


def wait(*workers):
    for worker in workers:
        worker.communicate(timeout=HANG_SECONDS)
        assert worker.returncode == 0


def lost(how, path, pages):
    """Changes each of `pages` pages by `how` and through a mapping. Returns the pages that lost a change of each kind.
    """
    with open(path, "wb") as stream:
        stream.write(OLD * (pages * PAGE // len(OLD)))
    with running((how, path, pages), ("map", path, pages), ("send dirty pages", path, pages)) as workers:
        wait(*workers)
    with open(path, "rb") as stream:
        data = stream.read()
    _, left, keeps_rest = CHANGES[how]
    expected = [(left, DIRECT_AT)] + ([(MAPPED, MAPPED_AT)] if keeps_rest else [])
    return [[page for page in range(pages) if not data.startswith(kind, page * PAGE + at)] for kind, at in expected]


def take_turns(seen, path, rounds):
    """Two processes change one word in turn, `rounds` times. The second one reads by `seen` what the first wrote."""
    with open(path, "wb") as stream:
        stream.write(bytes(PAGE))
    with running(("ask", path, rounds), (f"answer by {seen}", path, rounds), ("touch", path, 1)) as workers:
        wait(*workers)
    with open(path, "rb") as stream:
        assert number(stream.read(8)) == 2 * rounds


if __name__ == "__main__":
    sys.stdout.write("r")
    sys.stdout.flush()
    sys.stdin.readline()
    ROLES[sys.argv[1]](sys.argv[2], int(sys.argv[3]))
