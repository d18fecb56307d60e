# SPDX-License-Identifier: Apache-2.0
"""Directories that change while they are read, and files that several processes append to, on a mount and elsewhere.
What is true there: an entry that exists throughout is returned exactly once, one that was removed before never, and no
name twice; each record is whole, and none is lost."""

import contextlib
import itertools
import multiprocessing
import os
import random
import threading

import pytest

from harness.listing import Directory, getdents
from posix_script import flags_of

MOUNT_OPTIONS = "allow_other,dev,suid"
pytestmark = pytest.mark.limit(1200)   # of the long form
MANY, MANY_IN_FULL = 2_000, 100_000
fork = multiprocessing.get_context("fork")


@contextlib.contextmanager
def running(function, *arguments):
    """A process that calls the function with an event that ends it, and an event of its first round."""
    started, ended = fork.Event(), fork.Event()
    process = fork.Process(target=function, args=(started, ended, *arguments))
    process.start()
    try:
        assert started.wait(60)
        yield
    finally:
        ended.set()
        process.join(60)
    assert process.exitcode == 0


def touch(path):
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))


def churn(started, ended, directory, number):
    """Creates, renames and removes entries; no name is used twice."""
    for turn in itertools.count():
        names = [f"{directory}/{prefix}-{number}-{turn}" for prefix in ("aa", "stays-000500x", "zz", "moved")]
        touch(names[0])
        touch(names[1])
        os.rename(names[0], names[3])
        os.link(names[1], names[2])
        for name in names[1:]:
            os.unlink(name)
        started.set()
        if ended.is_set():
            return


def entries(stream):
    return [name for name in iter(stream.read, None) if name not in (b".", b"..")]


def next_of(stream, names):
    """The next entry that is one of the names."""
    return next((name for name in iter(stream.read, None) if name in names), None)


@pytest.fixture(params=["10", "many"])
def filled(place, request, pytestconfig):
    """A directory, and the names in it by their order; others were in it, and are removed."""
    many = MANY_IN_FULL if pytestconfig.getoption("full") else MANY
    count = many if request.param == "many" else 10
    names = [f"stays-{index:06}" for index in range(count)]
    for index, name in enumerate(names):
        touch(place / name)
        if index % 10 == 5:
            touch(place / f"gone-{index}")
    for index in range(5, count, 10):
        os.unlink(place / f"gone-{index}")
    return place, dict.fromkeys(map(os.fsencode, names))


def test_one_stream_beside_processes_that_change_the_directory(filled):
    directory, stay = filled
    with running(churn, directory, 0), running(churn, directory, 1):
        for _ in range(3):
            stream = Directory(directory)
            for _ in range(2):
                names = entries(stream)
                assert len(set(names)) == len(names)
                assert sorted(name for name in names if name in stay) == list(stay)
                assert not [name for name in names if name.startswith(b"gone")]
                stream.rewind()
            stream.close()


def test_positions_stay_while_the_directory_changes(filled):
    """Also those before entries that are removed: the next one follows. POSIX permits that a stream still returns what
    was removed after its begin."""
    directory, stay = filled
    stream = Directory(directory)
    positions, names = [], []
    while (before := stream.tell()) is not None and (name := stream.read()) is not None:
        positions.append(before)
        names.append(name)
    chosen = sorted(random.Random(1).sample(range(len(names) - 1), min(len(names) - 1, 200)))
    with running(churn, directory, 0):
        for index in chosen:
            stream.seek(positions[index])
            assert [next_of(stream, names), next_of(stream, names)] == names[index:index + 2]
    removed = [index for index in chosen[::2] if names[index] in stay]
    for index in removed:
        os.unlink(os.fsencode(directory) + b"/" + names[index])
    left = stay.keys() - {names[index] for index in removed}
    for index in removed:
        stream.seek(positions[index])
        assert next_of(stream, left) == next((name for name in names[index:] if name in left), None)
    stream.close()


def test_an_entry_that_is_renamed_while_it_is_read_is_not_lost_from_others(filled):
    """Every entry is renamed once it has been returned. Those that were not returned yet are returned once."""
    directory, stay = filled
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    found = []
    while batch := [name for name, _ in getdents(descriptor, 4096)]:
        for name in batch:
            if name in stay:
                found.append(name)
                os.rename(name, b"after-" + name, src_dir_fd=descriptor, dst_dir_fd=descriptor)
    os.close(descriptor)
    assert sorted(found) == list(stay)
    assert sorted(map(os.fsencode, os.listdir(directory))) == sorted(b"after-" + name for name in stay)


@pytest.mark.parametrize("removes_all", [False, True], ids=["some", "all"])
def test_a_stream_goes_on_where_it_was_when_others_remove_and_list(place, removes_all):
    """The kernel caches the listing of a directory for everybody; the positions in it are those of every listing."""
    for index in range(1000):
        touch(place / f"{index:04}")
    for _ in range(2):
        os.listdir(place)
    descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    first = [name for name, _ in getdents(descriptor, 4096) if name not in (b".", b"..")]
    for name in first if removes_all else first[:50]:
        os.unlink(name, dir_fd=descriptor)
    touch(place / "0000-new")
    os.listdir(place)
    found = []
    while batch := getdents(descriptor, 4096):
        found += [name for name, _ in batch]
    os.close(descriptor)
    assert len(set(found)) == len(found) and not set(found) & set(first)
    assert {b"%04d" % index for index in range(1000)} == {*first, *found} - {b"0000-new"}


# Appending


def record(writer, number, size):
    return (f"<{writer}:{number}:".encode().ljust(size - 1, b"=") + b">")[:size]


def append(path, flags, writer, sizes, call=os.write):
    descriptor = os.open(path, flags_of(flags) | os.O_APPEND)
    for number, size in enumerate(sizes):
        assert call(descriptor, record(writer, number, size)) == size
    os.close(descriptor)


def finish(writers):
    for process in writers:
        process.start()
    for process in writers:
        process.join(120)
    assert [process.exitcode for process in writers] == [0] * len(writers)


def assert_complete(path, writers, sizes):
    """The file consists of the records of all writers, each in its order."""
    content, position, following = path.read_bytes(), 0, dict.fromkeys(range(writers), 0)
    while position < len(content):
        head = content[position:position + 40].split(b":")
        writer = int(head[0].removeprefix(b"<"))
        expected = record(writer, following[writer], sizes[following[writer]])
        assert content[position:position + len(expected)] == expected, (position, head)
        position += len(expected)
        following[writer] += 1
    assert set(following.values()) == {len(sizes)}


SIZES = {"small": [50 + index % 300 for index in range(400)],
         "around pages": [4090 + index % 13 for index in range(60)],
         "larger than a request": [(1 << 20) - 1, (2 << 20) + 77, 5000, 3 << 20]}


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("flags", ["O_WRONLY", "O_RDWR"])
def test_processes_append_whole_records(place, flags, sizes):
    touch(place / "log")
    finish([fork.Process(target=append, args=(place / "log", flags, writer, sizes)) for writer in range(3)])
    assert_complete(place / "log", 3, sizes)


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_descriptors_of_one_process_append_whole_records(place, sizes):
    """One of the threads with pwrite, whose position does not count (pwrite(2), BUGS)."""
    touch(place / "log")
    calls = [os.write, lambda descriptor, data: os.pwrite(descriptor, data, 0), os.write]
    threads = [threading.Thread(target=append, args=(place / "log", "O_RDWR", writer, sizes, call))
               for writer, call in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert_complete(place / "log", 3, sizes)


def write_records(descriptor, writer, sizes):
    for number, size in enumerate(sizes):
        assert os.write(descriptor, record(writer, number, size)) == size


@pytest.mark.parametrize("append_flag", [os.O_APPEND, 0], ids=["appending", "at one position"])
def test_processes_write_whole_records_to_one_open_file(place, append_flag):
    """They inherit the descriptor, as the children of a shell with `>>` or `>` do. POSIX requires that a write(2)
    changes the position at once."""
    sizes = SIZES["around pages"]
    descriptor = os.open(place / "log", os.O_CREAT | os.O_WRONLY | append_flag, 0o644)
    finish([fork.Process(target=write_records, args=(descriptor, writer, sizes)) for writer in range(3)])
    os.close(descriptor)
    assert_complete(place / "log", 3, sizes)
