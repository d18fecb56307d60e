# SPDX-License-Identifier: Apache-2.0
"""Checks the writers' files after a crash against what the writers reported. See crash_writers.py."""

import json
import os

from crash_writers import content, length_of, stream_of


class Record:
    """The reports of one writer over all rounds. `atomic_truncation`: whether a crash shows a file under O_TRUNC with
    old or new content; if the writer itself is killed, that is not guaranteed."""

    def __init__(self, atomic_truncation=True):
        self.atomic_truncation = atomic_truncation
        self.acknowledged = 0          # append: the guaranteed size
        self.attempted = 0             # append: the largest size attempted
        self.synced, self.tried = {}, {}   # replace: number and length that are guaranteed; numbers attempted since
        # churn: names that are guaranteed; names that may or may not exist; names whose creation had begun
        self.live, self.unsure, self.begun = set(), set(), set()
        self.last = []

    def hear(self, line):
        try:
            kind, what, *rest = json.loads(line)
        except ValueError:
            return  # the incomplete last line of a killed writer
        self.last = (self.last + [line.strip()])[-8:]
        if kind in ("try", "done"):
            getattr(self, f"{kind}_{what}")(*rest)

    def try_append(self, size):
        self.attempted = max(self.attempted, size)

    def done_append(self, size):
        self.acknowledged, self.attempted = size, max(size, self.attempted)

    def begin_replacement(self, name, number):
        self.tried.setdefault(name, []).append(number)

    try_synced = try_renamed = try_truncated = begin_replacement

    def done_synced(self, name, number):
        self.synced[name], self.tried[name] = (number, length_of(name, number)), []

    def done_renamed(self, name, number):
        pass

    done_truncated = done_renamed

    def try_create(self, name):
        self.unsure.add(name)
        self.begun.add(name)

    def done_create(self, name):
        self.unsure.discard(name)
        self.begun.discard(name)
        self.live.add(name)

    def try_delete(self, name):
        self.live.discard(name)
        self.unsure.add(name)

    def done_delete(self, name):
        self.unsure.discard(name)

    def try_rename(self, name, moved):
        self.live.discard(name)
        self.unsure |= {name, moved}

    def done_rename(self, name, moved):
        self.unsure -= {name, moved}
        self.live.add(moved)


def check_append(directory, record):
    path = os.path.join(directory, "log")
    size = os.path.getsize(path) if os.path.exists(path) else 0
    assert record.acknowledged <= size <= max(record.attempted, record.acknowledged), (
        f"log has {size} bytes; promised {record.acknowledged}, tried {record.attempted}")
    if size:
        with open(path, "rb") as stream:
            data = stream.read()
        expected = stream_of("log", 0, size)
        if data != expected:
            first = next(i for i in range(size) if data[i] != expected[i])
            raise AssertionError(f"log of {size} bytes is wrong from byte {first} on, promised {record.acknowledged}: "
                                 f"{data[first:first + 16].hex()}, expected {expected[first:first + 16].hex()}")
    record.acknowledged = record.attempted = size


def check_replace(directory, record):
    """Every file is complete: it has the content guaranteed before the crash, or one attempted since."""
    for name in {**record.synced, **record.tried}:
        if name.startswith("truncated") and not record.atomic_truncation:
            continue
        path = os.path.join(directory, name)
        if not os.path.exists(path):
            assert name not in record.synced, f"{name} is gone; promised was number {record.synced[name]}"
            record.tried[name] = []
            continue
        with open(path, "rb") as stream:
            data = stream.read()
        # Content that one crash has shown must survive later ones.
        record.synced[name], record.tried[name] = found_in(name, data, record), []


def found_in(name, data, record):
    """The number and length of the allowed content that `data` equals."""
    allowed = [(number, length_of(name, number)) for number in record.tried.get(name, [])]
    if name in record.synced:
        allowed.insert(0, record.synced[name])
    if name.startswith("truncated") and record.synced.get(name, (0, 0))[1] == 0:
        # Without old content, a crash may show part of the new one.
        allowed += [(number, len(data)) for number, length in allowed if len(data) < length]
    for number, length in allowed:
        if data == content(name, number, length_of(name, number))[:length]:
            return number, length
    raise AssertionError(f"{name} has {len(data)} bytes and begins with {data[:60]!r}; allowed are the whole contents "
                         f"of (number, length) {allowed}")


def check_churn(directory, record):
    names = set(os.listdir(directory))
    assert record.live <= names, f"promised and gone: {sorted(record.live - names)}"
    assert names <= record.live | record.unsure, f"deleted and back: {sorted(names - record.live - record.unsure)}"
    for name in names:
        number = int(name.rpartition("-")[2])
        expected = content("churn", number, length_of("churn", number) % 50_000)
        with open(os.path.join(directory, name), "rb") as stream:
            data = stream.read()
        if name in record.begun:
            # A prefix of the content.
            assert data == expected[:len(data)], f"{name} of {len(data)} bytes holds what was never written to it"
        else:
            assert data == expected, f"{name} has {len(data)} bytes, {len(expected)} were promised"
    # A file that a crash left incomplete is not completed later.
    for name in names & record.begun:
        os.unlink(os.path.join(directory, name))
    record.live, record.unsure, record.begun = names - record.begun, set(), set()


CHECKS = {"append": check_append, "replace": check_replace, "truncate": check_replace, "churn": check_churn}
