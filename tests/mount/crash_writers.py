# SPDX-License-Identifier: Apache-2.0
"""Writers for test_kill.py: programs that report on standard output, line by line, what was guaranteed to them.

    crash_writers.py append|replace|truncate|churn DIRECTORY SEED

They run until the filesystem fails under them. Each line is a JSON list: what was begun ("try ...") or what is
guaranteed ("done ..."). Every file's content follows from its name and a number, so the checker knows every byte that
the file may contain. The guarantees:
  append   a file grows; "done append SIZE" once fsync has returned.
  replace  whole files replaced in three ways: temporary file, fsync, rename, fsync of the directory ("synced"); rename
           without fsync ("renamed"); O_TRUNC over the old file ("truncated"). Only "synced" guarantees durability; all
           of them guarantee the old or the new content, never a mixture.
  truncate only the third of these, on few files, so that a replacement begins before the previous one is durable.
  churn    small files created and fsynced ("done create"), deleted with an fsync of the directory ("done delete"),
           renamed ("done rename")."""

import hashlib
import json
import os
import random
import sys


def content(name, number, length):
    """`length` bytes that only this name and number produce."""
    head = f"{name} {number} {length}\n".encode()
    block = hashlib.sha256(head).digest() * 128
    return (head + block * (length // len(block) + 1))[:length]


def length_of(name, number):
    """Sizes around all boundaries of a filesystem, the same for the writer and the checker."""
    generator = random.Random(f"{name} {number}")
    return generator.choice([100, 4095, 4096, 5000, 65536, 70_001, 300_000, (1 << 20) + 1, 3 << 20])


def stream_of(name, start, length):
    """Any part of an endless stream, for the growing file."""
    first, last = start // 32, (start + length + 31) // 32
    data = b"".join(hashlib.sha256(f"{name} {index}".encode()).digest() for index in range(first, last))
    return data[start - first * 32:start - first * 32 + length]


def say(*words):
    sys.stdout.write(json.dumps(words) + "\n")
    sys.stdout.flush()


def sync_directory(path):
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(descriptor)
    os.close(descriptor)


def append(directory, generator):
    path = os.path.join(directory, "log")
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    size = os.fstat(descriptor).st_size
    os.fsync(descriptor)
    say("done", "append", size)
    while True:
        length = generator.choice([1, 100, 3000, 4096, 20_000, 200_000])
        say("try", "append", size + length)
        view = memoryview(stream_of("log", size, length))
        while view:
            view = view[os.write(descriptor, view):]
        size += length
        if generator.random() < 0.7:
            (os.fsync if generator.random() < 0.5 else os.fdatasync)(descriptor)
            say("done", "append", size)


def write_whole(path, data, sync):
    with open(path, "wb", buffering=0) as stream:
        view = memoryview(data)
        while view:
            view = view[stream.write(view[:1 << 20]):]
        if sync:
            os.fsync(stream.fileno())


def truncate(directory, generator):
    replace(directory, generator, ways=("truncated",))


def replace(directory, generator, ways=("synced", "renamed", "truncated")):
    number = generator.randrange(1 << 30)
    while True:
        way = generator.choice(ways)
        name = f"{way}-{generator.randrange(3)}"
        path, number = os.path.join(directory, name), number + 1
        data = content(name, number, length_of(name, number))
        say("try", way, name, number)
        if way == "truncated":
            write_whole(path, data, sync=False)
        else:
            write_whole(f"{path}.tmp", data, sync=way == "synced")
            os.rename(f"{path}.tmp", path)
        if way == "synced":
            sync_directory(directory)
        say("done", way, name, number)


def churn(directory, generator):
    number, live = generator.randrange(1 << 30), sorted(os.listdir(directory))
    while True:
        number += 1
        if len(live) > 60 or (live and generator.random() < 0.4):
            name = live.pop(generator.randrange(len(live)))
            if generator.random() < 0.3:
                moved = f"m{number}-{name.rpartition('-')[2]}"
                say("try", "rename", name, moved)
                os.rename(os.path.join(directory, name), os.path.join(directory, moved))
                sync_directory(directory)
                say("done", "rename", name, moved)
                live.append(moved)
                continue
            say("try", "delete", name)
            os.unlink(os.path.join(directory, name))
            sync_directory(directory)
            say("done", "delete", name)
        else:
            # The number after the dash identifies the content and is kept through every rename.
            name = f"f{number}-{number}"
            say("try", "create", name)
            write_whole(os.path.join(directory, name), content("churn", number, length_of("churn", number) % 50_000),
                        sync=True)
            say("done", "create", name)
            live.append(name)


if __name__ == "__main__":
    try:
        writers = {"append": append, "replace": replace, "truncate": truncate, "churn": churn}
        writers[sys.argv[1]](sys.argv[2], random.Random(sys.argv[3]))
    except OSError as failure:
        say("end", failure.errno, str(failure))
