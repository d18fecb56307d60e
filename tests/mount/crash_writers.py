"""Programs that write while the filesystem is killed, and what may be left of their files afterwards.

    crash_writers.py KIND DIRECTORY SEED

Each says on standard output what it begins and what has been acknowledged; a line is out before the next step begins.
It goes on until the filesystem goes away. The same class then checks the directory against those lines. All content
comes from the seed, so what should have been written need not be kept."""

import errno
import itertools
import os
import random
import sys

GONE = {errno.ENOTCONN, errno.ECONNABORTED, errno.ENODEV, errno.EIO}


def content(*words, size):
    return random.Random("/".join(map(str, words))).randbytes(size)


def require(condition, *words):
    assert condition, " ".join(map(str, words))


def read(path):
    with open(path, "rb") as stream:
        return stream.read()


class Writer:
    def __init__(self, directory, seed):
        self.directory, self.seed = os.fspath(directory), seed
        self.random = random.Random(f"{type(self).__name__}/{seed}")

    def path(self, name):
        return os.path.join(self.directory, name)

    @staticmethod
    def say(*words):
        os.write(1, (" ".join(map(str, words)) + "\n").encode())

    def sync_directory(self):
        descriptor = os.open(self.directory, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)

    @staticmethod
    def write_all(descriptor, data, piece=1 << 20):
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view[:piece]):]


class Append(Writer):
    """Appends records to two files, with an fsync after each. What was acknowledged is whole, in order, and what lies
    behind it is the beginning of what was being appended."""

    SIZES = {"small.log": (1, 9_000), "large.log": (100_000, 2_000_000)}

    def record(self, name, number):
        low, high = self.SIZES[name]
        source = random.Random(f"{self.seed}/{name}/{number}")
        return source.randbytes(source.randint(low, high))

    def run(self):
        files = {name: os.open(self.path(name), os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644) for name in self.SIZES}
        numbers, sizes = dict.fromkeys(files, 0), dict.fromkeys(files, 0)
        for step in itertools.count():
            name = "large.log" if step % 4 == 3 and sizes["large.log"] < 24 << 20 else "small.log"
            record = self.record(name, numbers[name])
            numbers[name] += 1
            sizes[name] += len(record)
            self.say("begin", name, sizes[name])
            self.write_all(files[name], record, 300_000)
            os.fsync(files[name])
            self.say("synced", name, sizes[name])

    def check(self, lines):
        begun, synced = dict.fromkeys(self.SIZES, 0), dict.fromkeys(self.SIZES, 0)
        for word, name, size in lines:
            (begun if word == "begin" else synced)[name] = int(size)
        for name in self.SIZES:
            if not os.path.exists(self.path(name)):
                require(synced[name] == 0, self.path(name), "is missing after an fsync of", synced[name], "bytes")
                continue
            actual = read(self.path(name))
            require(synced[name] <= len(actual) <= begun[name], self.path(name), "has", len(actual), "bytes;",
                    synced[name], "were synced,", begun[name], "begun")
            expected = bytearray()
            for number in itertools.count():
                if len(expected) >= len(actual):
                    break
                expected += self.record(name, number)
            first = next((at for at in range(0, len(actual), 4096)
                          if actual[at:at + 4096] != expected[at:min(at + 4096, len(actual))]), None)
            require(first is None, self.path(name), "differs in the block at", first, "of", len(actual))


class Versions(Writer):
    """A file that is replaced again and again. A version's first eight bytes are its number."""

    NAME = "model"

    def version(self, number):
        source = random.Random(f"{self.seed}/{type(self).__name__}/{number}")
        size = source.randint(1, 40_000) if number % 3 else source.randint(1 << 20, 5 << 20)
        return number.to_bytes(8, "little") + source.randbytes(size)

    def begin(self):
        """The first version, durable before anything can happen to it."""
        descriptor = os.open(self.path(self.NAME), os.O_CREAT | os.O_WRONLY, 0o644)
        self.write_all(descriptor, self.version(0))
        os.fsync(descriptor)
        os.close(descriptor)
        self.sync_directory()
        self.say("durable", 0)

    def check(self, lines):
        """One whole version: not older than the last that was acknowledged as durable, not newer than the last begun."""
        begun = max((int(number) for word, number in lines if word == "begin"), default=0)
        durable = max((int(number) for word, number in lines if word == "durable"), default=None)
        path = self.path(self.NAME)
        if not os.path.exists(path):
            require(durable is None, path, "is missing; version", durable, "was durable")
            return
        actual = read(path)
        number = int.from_bytes(actual[:8], "little")
        if durable is None:
            require(actual == self.version(0)[:len(actual)], path, "is not a part of the first version")
            return
        require(len(actual) >= 8, path, "has only", len(actual), "bytes; version", durable, "was durable")
        require(durable <= number <= begun, path, "is version", number, "; durable was", durable, "; begun", begun)
        require(actual == self.version(number), path, "is not the whole of version", number, ":", len(actual), "bytes of",
                len(self.version(number)))


class RenameSynced(Versions):
    """Write a temporary file, fsync it, rename it over the old one; the directory is synced now and then."""

    def run(self):
        self.begin()
        temporary = self.path("model.new")
        for number in itertools.count(1):
            descriptor = os.open(temporary, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o644)
            self.say("begin", number)
            self.write_all(descriptor, self.version(number))
            os.fsync(descriptor)
            # An fsync makes all earlier operations on names durable: the last version's rename.
            self.say("durable", number - 1)
            os.close(descriptor)
            os.rename(temporary, self.path(self.NAME))
            self.say("renamed", number)
            if self.random.random() < 0.5:
                self.sync_directory()
                self.say("durable", number)


class RenameUnsynced(Versions):
    """Write a temporary file and rename it, with no fsync at all: the rename waits for its data."""

    def run(self):
        self.begin()
        temporary = self.path("model.new")
        for number in itertools.count(1):
            descriptor = os.open(temporary, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o644)
            self.say("begin", number)
            self.write_all(descriptor, self.version(number))
            os.close(descriptor)
            os.rename(temporary, self.path(self.NAME))
            self.say("renamed", number)


class Truncate(Versions):
    """Open with O_TRUNC and write the new content, in one go, with an fsync of every other version."""

    def run(self):
        self.begin()
        for number in itertools.count(1):
            data = self.version(number)
            self.say("begin", number)
            descriptor = os.open(self.path(self.NAME), os.O_TRUNC | os.O_WRONLY)
            self.write_all(descriptor, data)
            if number % 2:
                os.fsync(descriptor)
                self.say("durable", number)
            os.close(descriptor)


class Churn(Writer):
    """Creates, links, moves and removes small files in four directories. A file's content follows from its number."""

    FOLDERS = [f"folder-{number}" for number in range(4)]

    def data(self, number):
        return content(self.seed, "churn", number, size=random.Random(f"{self.seed}/{number}").randint(0, 60_000))

    def run(self):
        for folder in self.FOLDERS:
            os.mkdir(self.path(folder))
        places = {}
        for number in itertools.count():
            self.create(number, places)
            while len(places) > 40 or (places and self.random.random() < 0.6):
                self.random.choice([self.remove, self.move, self.link])(self.random.choice(list(places)), places)

    def create(self, number, places):
        folder = self.random.choice(self.FOLDERS)
        places[number] = folder
        self.say("create", number)
        descriptor = os.open(self.path(f"{folder}/{number}"), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        self.write_all(descriptor, self.data(number))
        if self.random.random() < 0.4:
            os.fsync(descriptor)
            self.say("synced", number)
        os.close(descriptor)

    def remove(self, number, places):
        folder = places.pop(number)
        self.say("remove", number)
        os.unlink(self.path(f"{folder}/{number}"))
        self.say("removed", number)

    def move(self, number, places):
        target = self.random.choice(self.FOLDERS)
        os.rename(self.path(f"{places[number]}/{number}"), self.path(f"{target}/{number}"))
        places[number] = target

    def link(self, number, places):
        os.link(self.path(f"{places[number]}/{number}"), self.path(f"{places[number]}/{number}.link"))
        self.say("linked", number)
        os.unlink(self.path(f"{places[number]}/{number}.link"))

    def check(self, lines):
        """A synced file is there, once and whole, unless its removal had begun; one whose removal was followed by an
        fsync is not; anything else is a beginning of what it was to hold."""
        created, synced, leaving, waiting, gone = set(), set(), set(), set(), set()
        for word, text in lines:
            number = int(text)
            if word == "create":
                created.add(number)
            elif word == "synced":
                synced.add(number)
                gone |= waiting
            elif word == "remove":
                leaving.add(number)
            elif word == "removed":
                waiting.add(number)
        found = {}
        for folder, _, names in os.walk(self.directory):
            for name in names:
                number = int(name.removesuffix(".link"))
                require(number in created, os.path.join(folder, name), "was never created")
                if not name.endswith(".link"):
                    require(number not in found, name, "is in two directories:", folder, found.get(number))
                    found[number] = folder
                actual, expected = read(os.path.join(folder, name)), self.data(number)
                require(actual == expected[:len(actual)], os.path.join(folder, name), "holds wrong bytes")
                require(len(actual) == len(expected) or number not in synced, os.path.join(folder, name),
                        "was synced with", len(expected), "bytes and has", len(actual))
        require(not gone & found.keys(), "removed durably and back again:", sorted(gone & found.keys()))
        missing = synced - leaving - found.keys()
        require(not missing, "synced and missing:", sorted(missing))


KINDS = {kind.__name__: kind for kind in (Append, RenameSynced, RenameUnsynced, Truncate, Churn)}


def main(kind, directory, seed):
    writer = KINDS[kind](directory, seed)
    try:
        writer.run()
    except OSError as error:
        # An answer of a filesystem that still serves is a failure, which the test tells from one that was killed.
        writer.say("ended" if error.errno in GONE else "failed", errno.errorcode.get(error.errno, error.errno))


if __name__ == "__main__":
    main(*sys.argv[1:])
