# SPDX-License-Identifier: Apache-2.0
"""Random operations on one file, compared with a model in memory. It is a separate program, because an error in a
mapping ends the process, and because a process can be killed.

    random_file.py DIRECTORY --seed 7 --ops 1500 [--dump FILE] [--remount "COMMAND"]
    random_file.py DIRECTORY --replay FILE [--remount "COMMAND"]

Exits with 0 if every read, size and hole agreed with the model. --dump writes the list of operations, one per line.
--replay repeats them, even after lines were removed; data is generated from numbers in the list."""

import argparse
import errno
import json
import mmap
import os
import random
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import lease_client  # noqa: E402
from harness.syscalls import (FALLOC_KEEP_SIZE, FALLOC_PUNCH_HOLE, FALLOC_ZERO_RANGE,  # noqa: E402
                              fallocate, sync_filesystem)

LIMIT = 6 << 20       # maximum size of the file
BLOCK = 4096
# On another filesystem; for a user without leases; without memory, or for what is not loaded.
NO_HOT_MEMORY = (errno.ENOTTY, errno.EOPNOTSUPP, errno.EPERM, errno.EACCES, errno.ENOMEM)


class Mismatch(AssertionError):
    pass


def data_of(number, length):
    return random.Random(number).randbytes(length)


def require(condition, *what):
    if not condition:
        raise Mismatch(" ".join(map(str, what)))


def compare(expected, actual, offset, what):
    if expected == actual:
        return
    if len(expected) != len(actual):
        raise Mismatch(f"{what} at {offset}: {len(actual)} bytes, expected {len(expected)}")
    first = next(i for i in range(len(expected)) if expected[i] != actual[i])
    wrong = sum(a != b for a, b in zip(expected, actual))
    raise Mismatch(f"{what} at {offset}: byte {offset + first} is {actual[first]}, expected {expected[first]}; "
                   f"{wrong} of {len(expected)} bytes are wrong, the last at "
                   f"{offset + max(i for i in range(len(expected)) if expected[i] != actual[i])}")


class File:
    """The file under test and its model. There is one method per operation; its arguments are those in a dump."""

    def __init__(self, directory, remount):
        self.path, self.other = os.path.join(directory, "file"), os.path.join(directory, "other")
        self.remount_command = remount
        self.model = bytearray()
        self.descriptor = self.direct = self.append_descriptor = -1
        self.mapping = None
        self.hot, self.hot_maps = None, 0
        self.buffer = mmap.mmap(-1, 4 << 20)      # page-aligned, for O_DIRECT
        self.open(create=True)

    # Handles.
    def open(self, create=False):
        flags = os.O_RDWR | (os.O_CREAT | os.O_TRUNC if create else 0)
        self.descriptor = os.open(self.path, flags, 0o644)
        self.append_descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND)
        try:
            self.direct = os.open(self.path, os.O_RDWR | os.O_DIRECT)
        except OSError:
            self.direct = -1

    def close(self):
        self.unmap()
        for descriptor in (self.descriptor, self.append_descriptor, self.direct):
            if descriptor >= 0:
                os.close(descriptor)

    def reopen(self):
        self.close()
        self.open()
        self.stat()

    def remount(self):
        self.close()
        if self.remount_command:
            subprocess.run(self.remount_command, check=True, timeout=120)
        self.open()
        self.check_all()

    # Operations that change the file.
    def put(self, offset, data):
        if not data:
            return
        self.extend(offset + len(data))
        self.model[offset:offset + len(data)] = data

    def extend(self, size):
        if size > len(self.model):
            self.model.extend(bytes(size - len(self.model)))

    def pwrite(self, offset, length, number):
        data = data_of(number, length)
        require(os.pwrite(self.descriptor, data, offset) == length, "short pwrite")
        self.put(offset, data)

    def pwritev(self, offset, lengths, number):
        data = data_of(number, sum(lengths))
        pieces, start = [], 0
        for length in lengths:
            pieces.append(data[start:start + length])
            start += length
        require(os.pwritev(self.descriptor, pieces, offset) == len(data), "short pwritev")
        self.put(offset, data)

    def append(self, length, number):
        data = data_of(number, length)
        require(os.write(self.append_descriptor, data) == length, "short append")
        self.put(len(self.model), data)

    def direct_write(self, block, blocks, number):
        data = data_of(number, blocks * BLOCK)
        self.buffer[:len(data)] = data
        written = os.pwritev(self.direct if self.direct >= 0 else self.descriptor,
                             [memoryview(self.buffer)[:len(data)]], block * BLOCK)
        require(written == len(data), "short direct write")
        self.put(block * BLOCK, data)

    def truncate(self, size, by_path):
        os.truncate(self.path if by_path else self.descriptor, size)
        del self.model[size:]
        self.extend(size)

    def replace(self, length, number):
        self.unmap()
        with open(self.path, "wb", buffering=0) as stream:
            data = data_of(number, length)
            require(stream.write(data) == length, "short write after O_TRUNC")
        self.model[:] = data

    def allocate(self, offset, length, keep):
        fallocate(self.descriptor, FALLOC_KEEP_SIZE if keep else 0, offset, length)
        if not keep:
            self.extend(offset + length)

    def punch(self, offset, length):
        fallocate(self.descriptor, FALLOC_PUNCH_HOLE | FALLOC_KEEP_SIZE, offset, length)
        self.zero(offset, length)

    def zero(self, offset, length):
        end = min(offset + length, len(self.model))
        if end > offset:
            self.model[offset:end] = bytes(end - offset)

    def zero_range(self, offset, length, keep):
        fallocate(self.descriptor, FALLOC_ZERO_RANGE | (FALLOC_KEEP_SIZE if keep else 0), offset, length)
        if not keep:
            self.extend(offset + length)
        self.zero(offset, length)

    def copy_within(self, source, target, length):
        copied = 0
        while copied < length:
            count = os.copy_file_range(self.descriptor, self.descriptor, length - copied, source + copied,
                                       target + copied)
            require(count > 0 or source + copied >= len(self.model), "copy_file_range made no progress")
            if count == 0:
                break
            self.put(target + copied, bytes(self.model[source + copied:source + copied + count]))
            copied += count

    def copy_from_other(self, target, length, number):
        data = data_of(number, length)
        other = os.open(self.other, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            os.pwrite(other, data, 0)
            copied = 0
            while copied < length:
                count = os.copy_file_range(other, self.descriptor, length - copied, copied, target + copied)
                require(count > 0, "copy_file_range made no progress")
                copied += count
            self.put(target, data)
        finally:
            os.close(other)

    # Mappings. The mapping stays during other operations; only bytes inside the file are accessed.
    def map(self):
        self.unmap()
        if self.model:
            self.mapping = mmap.mmap(self.descriptor, len(self.model))

    def unmap(self):
        if self.mapping is not None:
            self.mapping.close()
            self.mapping = None

    def mapped_end(self):
        return min(len(self.mapping), len(self.model)) if self.mapping is not None else 0

    def map_write(self, offset, length, number, sync):
        length = min(length, self.mapped_end() - offset)
        if length <= 0:
            return
        data = data_of(number, length)
        self.mapping[offset:offset + length] = data
        self.put(offset, data)
        if sync:
            start = offset // BLOCK * BLOCK
            self.mapping.flush(start, min(offset + length, self.mapped_end()) - start)

    def map_read(self, offset, length):
        length = min(length, self.mapped_end() - offset)
        if length > 0:
            compare(self.model[offset:offset + length], self.mapping[offset:offset + length], offset, "mapping")

    # Hot memory: a snapshot, which later changes, remounts and maps leave as it is.
    def hot_map(self, offset, length, load, keep):
        length = min(length, len(self.model) - offset)
        if length <= 0:
            return
        try:
            memory = lease_client.map_hot(self.descriptor, offset, length, load=load)
        except OSError as error:
            require(error.errno in NO_HOT_MEMORY, "no hot memory:", error)
            return
        self.hot_maps += 1
        mapping = mmap.mmap(memory, offset + length, mmap.MAP_PRIVATE, mmap.PROT_READ)
        os.close(memory)
        snapshot = mapping, offset, bytes(self.model[offset:offset + length])
        compare(snapshot[2], mapping[offset:], offset, "hot memory")
        if keep:
            self.hot_check()
            self.hot = snapshot

    def hot_check(self):
        if self.hot is not None:
            mapping, offset, data = self.hot
            compare(data, mapping[offset:], offset, "hot memory of an earlier moment")

    # Operations that inspect the file.
    def pread(self, offset, length):
        compare(self.model[offset:offset + length], os.pread(self.descriptor, length, offset), offset, "pread")

    def direct_read(self, block, blocks):
        length = blocks * BLOCK
        count = os.preadv(self.direct if self.direct >= 0 else self.descriptor,
                          [memoryview(self.buffer)[:length]], block * BLOCK)
        compare(self.model[block * BLOCK:block * BLOCK + length], self.buffer[:count], block * BLOCK, "direct read")

    def stat(self):
        require(os.fstat(self.descriptor).st_size == len(self.model), "size is",
                os.fstat(self.descriptor).st_size, "expected", len(self.model))
        require(os.stat(self.path).st_size == len(self.model), "size by path is wrong")

    def holes(self):
        """Reported holes must read as zeros; data and holes must alternate up to the end."""
        size, offset = len(self.model), 0
        while offset < size:
            try:
                data = os.lseek(self.descriptor, offset, os.SEEK_DATA)
            except OSError:
                data = size
            require(not any(self.model[offset:data]), "data lies in the hole from", offset, "to", data)
            if data >= size:
                break
            offset = os.lseek(self.descriptor, data, os.SEEK_HOLE)
            require(data < offset <= size, "SEEK_HOLE from", data, "gave", offset)

    def sync(self, how):
        if how == "fsync":
            os.fsync(self.descriptor)
        elif how == "fdatasync":
            os.fdatasync(self.descriptor)
        elif how == "append":
            os.fsync(self.append_descriptor)
        else:
            sync_filesystem(self.descriptor)   # sync(2) would also wait for the disks and mounts of other tests

    def drop(self):
        os.posix_fadvise(self.descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def check_all(self):
        self.stat()
        self.pread(0, LIMIT)
        self.hot_check()


class Chooser:
    """Chooses operations from a seed and the file's size alone, so that a seed always gives the same run."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def length(self):
        kind = self.random.random()
        top = 200 if kind < 0.3 else 9000 if kind < 0.6 else 140_000 if kind < 0.93 else 1_300_000
        return self.random.randrange(1, top)

    def offset(self, size):
        kind = self.random.random()
        if kind < 0.15:
            return self.random.choice([0, size, max(0, size - 1)])
        place = self.random.randrange(max(size, 1) + (300_000 if kind < 0.25 else 1))
        return place // BLOCK * BLOCK if kind < 0.5 else place

    def place(self, size):
        offset, length = self.offset(size), self.length()
        offset = min(offset, LIMIT - 1)
        return offset, min(length, LIMIT - offset)

    def blocks(self, size):
        block = self.random.randrange(size // BLOCK + 8)
        return min(block, LIMIT // BLOCK - 1), min(self.random.choice([1, 1, 2, 5, 16, 100, 300]),
                                                   LIMIT // BLOCK - min(block, LIMIT // BLOCK - 1))

    def number(self):
        return self.random.getrandbits(40)

    def chance(self, probability):
        return self.random.random() < probability

    def copy(self, size):
        if size < 2:
            return None
        source = self.offset(size - 1)
        length = min(self.length(), size)
        target = self.offset(size)
        if max(source, target) + length > LIMIT or abs(source - target) < length or source >= size:
            return None
        return ["copy_within", source, target, length]

    def next(self, size):
        """Returns one operation as a list of its name and arguments."""
        names = list(CHOICES)
        name = self.random.choices(names, [CHOICES[n] for n in names])[0]
        made = getattr(self, f"make_{name}", lambda _: [name])(size)
        return made or ["stat"]

    def make_pwrite(self, size):
        return ["pwrite", *self.place(size), self.number()]

    def make_pwritev(self, size):
        offset = min(self.offset(size), LIMIT - 60_000)
        return ["pwritev", offset, [self.random.randrange(1, 6000) for _ in range(self.random.randrange(2, 9))],
                self.number()]

    def make_append(self, size):
        length = min(self.length(), LIMIT - size)
        return ["append", length, self.number()] if length > 0 else None

    def make_direct_write(self, size):
        return ["direct_write", *self.blocks(size), self.number()]

    def make_direct_read(self, size):
        return ["direct_read", *self.blocks(size)]

    def make_pread(self, size):
        return ["pread", *self.place(size)]

    def make_truncate(self, size):
        target = self.offset(size) if self.chance(0.7) else min(size + self.length(), LIMIT)
        return ["truncate", min(target, LIMIT), self.chance(0.3)]

    def make_replace(self, _):
        return ["replace", self.length(), self.number()]

    def make_allocate(self, size):
        return ["allocate", *self.place(size), self.chance(0.5)]

    def make_punch(self, size):
        return ["punch", *self.place(size)]

    def make_zero_range(self, size):
        return ["zero_range", *self.place(size), self.chance(0.5)]

    def make_copy_within(self, size):
        return self.copy(size)

    def make_copy_from_other(self, size):
        return ["copy_from_other", *self.place(size), self.number()]

    def make_map_write(self, size):
        return ["map_write", *self.place(size), self.number(), self.chance(0.3)]

    def make_map_read(self, size):
        return ["map_read", *self.place(size)]

    def make_hot_map(self, size):
        offset, length = self.place(size) if self.chance(0.5) else (0, LIMIT)
        return ["hot_map", offset, length, self.chance(0.7), self.chance(0.3)]

    def make_sync(self, _):
        return ["sync", self.random.choice(["fsync", "fdatasync", "append", "sync"])]


CHOICES = {"pwrite": 18, "pwritev": 3, "append": 7, "direct_write": 8, "direct_read": 8, "pread": 20, "truncate": 5,
           "replace": 0.7, "allocate": 3, "punch": 4, "zero_range": 3, "copy_within": 4, "copy_from_other": 2, "map": 4,
           "unmap": 2, "map_write": 10, "map_read": 8, "hot_map": 3, "hot_check": 2, "stat": 2, "holes": 2, "sync": 3,
           "drop": 1, "reopen": 2, "check_all": 1, "remount": 0.25}


def perform(file, operations, dump):
    for index, (name, *arguments) in enumerate(operations):
        if dump:
            dump.write(json.dumps([name, *arguments]) + "\n")
            dump.flush()
        try:
            getattr(file, name)(*arguments)
        except (AssertionError, OSError) as error:
            print(f"operation {index} {[name, *arguments]}: {type(error).__name__}: {error}", file=sys.stderr)
            return 1
    return 0


def choose(file, seed, count):
    chooser = Chooser(seed)
    for _ in range(count):
        yield chooser.next(len(file.model))
    yield ["remount"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("directory")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ops", type=int, default=1500)
    parser.add_argument("--dump")
    parser.add_argument("--replay")
    parser.add_argument("--remount", help="command that unmounts and mounts again")
    arguments = parser.parse_args()
    file = File(arguments.directory, ["sh", "-c", arguments.remount] if arguments.remount else None)
    if arguments.replay:
        operations = [json.loads(line) for line in open(arguments.replay)]
    else:
        operations = choose(file, arguments.seed, arguments.ops)
    dump = open(arguments.dump, "w") if arguments.dump else None
    code = perform(file, operations, dump)
    print(f"{file.hot_maps} maps of hot memory")
    return code


if __name__ == "__main__":
    sys.exit(main())
