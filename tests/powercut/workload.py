# SPDX-License-Identifier: Apache-2.0
"""The work that a power cut interrupts, and the check of what it left.

Every operation is marked in the log before it begins and after it was acknowledged, by its number. Its parameters and
the bytes that it writes are functions of the seed and the number, so the check needs only the marks before the cut.
"""

import os
import random

FILES = 6           # that are updated in place
UPDATED = 512 << 10
BLOCK = 4096
KINDS = ("publish", "update", "replace", "directory", "remove")
WEIGHTS = (5, 5, 4, 3, 2)


def content(seed, number, length):
    """The bytes that an operation writes."""
    return random.Random(f"{seed}/{number}").randbytes(length)


def kind_of(seed, number):
    return random.Random(f"{seed}/kind/{number}").choices(KINDS, WEIGHTS)[0]


def length_of(seed, number):
    return random.Random(f"{seed}/length/{number}").choice((1, 4096, 5000, 70_000, 300_000, 1_500_000))


def write_synced(path, data, flags=0):
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | flags, 0o644)
    try:
        done = 0
        while done < len(data):
            done += os.write(descriptor, data[done:])
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_directory(path):
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def perform(root, seed, number):
    """Does operation `number` below `root`. It is durable on return."""
    kind = kind_of(seed, number)
    data = content(seed, number, length_of(seed, number))
    if kind == "publish":
        write_synced(f"{root}/new-{number}", data)
        os.rename(f"{root}/new-{number}", f"{root}/published-{number}")
        sync_directory(root)
    elif kind == "update":
        # The whole file in one write, so that every block has the number of one update.
        write_synced(f"{root}/updated-{number % FILES}", content(seed, number, UPDATED))
    elif kind == "replace":
        write_synced(f"{root}/replaced-{number % FILES}", data, os.O_TRUNC)
    elif kind == "directory":
        os.mkdir(f"{root}/step-{number}.new")
        for part in range(3):
            with open(f"{root}/step-{number}.new/part-{part}", "wb", buffering=0) as stream:
                stream.write(content(seed, f"{number}/{part}", length_of(seed, number)))
        os.rename(f"{root}/step-{number}.new", f"{root}/step-{number}")
        sync_directory(root)
    else:
        victim = f"{root}/published-{victim_of(seed, number)}"
        if os.path.exists(victim):
            os.unlink(victim)
        sync_directory(root)


def victim_of(seed, number):
    """The operation whose file a removal deletes: an earlier publication, or itself if there is none."""
    earlier = [i for i in range(number) if kind_of(seed, i) == "publish"]
    return random.Random(f"{seed}/victim/{number}").choice(earlier) if earlier else number


class Expectation:
    """What must and may exist after the operations that the marks before a cut tell.

    Args:
        seed: Of the workload.
        begun: Number of operations that began, in order from 0.
        uncertain: Those of them that never ended: their effect may be there or not.
    """

    def __init__(self, seed, begun, uncertain):
        self.seed, self.begun, self.uncertain = seed, begun, uncertain

    def certain(self, number):
        return number not in self.uncertain

    def check(self, root):
        """Returns a list of texts, one for each violation below `root`."""
        wrong = []
        removals = {}
        for number in range(self.begun):
            if kind_of(self.seed, number) == "remove":
                removals.setdefault(victim_of(self.seed, number), []).append(number)
        for number in range(self.begun):
            kind = kind_of(self.seed, number)
            if kind == "publish":
                wrong += self.check_published(root, number, removals.get(number, []))
            elif kind == "directory":
                wrong += self.check_step(root, number)
        for file in range(FILES):
            wrong += self.check_updated(root, file) + self.check_replaced(root, file)
        return wrong

    def check_published(self, root, number, removals):
        path = f"{root}/published-{number}"
        if not os.path.exists(path):
            return [f"{path} is missing"] if self.certain(number) and not removals else []
        if any(self.certain(removal) for removal in removals):
            return [f"{path} exists although it was deleted"]
        return self.compare(path, number, length_of(self.seed, number))

    def check_step(self, root, number):
        path = f"{root}/step-{number}"
        if not os.path.isdir(path):
            return [f"{path} is missing"] if self.certain(number) else []
        length = length_of(self.seed, number)
        return [text for part in range(3) for text in self.compare(f"{path}/part-{part}", f"{number}/{part}", length)]

    def compare(self, path, number, length):
        found = self.read(path)
        if isinstance(found, str):
            return [found]
        return [] if found == content(self.seed, number, length) else [f"{path} has other bytes than were written"]

    @staticmethod
    def read(path):
        """Returns the bytes of a file, or what is wrong with it."""
        try:
            with open(path, "rb") as stream:
                return stream.read()
        except OSError as error:
            return f"{path} cannot be read: {error.strerror}"

    def last_of(self, kind, file):
        """The last operation on the file that ended, or None, and those after it that may have happened."""
        of_file = [i for i in range(self.begun) if kind_of(self.seed, i) == kind and i % FILES == file]
        last = max((i for i in of_file if self.certain(i)), default=None)
        return last, [i for i in of_file if not self.certain(i) and (last is None or i > last)]

    def check_updated(self, root, file):
        last, later = self.last_of("update", file)
        path = f"{root}/updated-{file}"
        if not os.path.exists(path):
            return [] if last is None else [f"{path} is missing"]
        found = self.read(path)
        if isinstance(found, str):
            return [found]
        if last is not None and len(found) != UPDATED:
            return [f"{path} has {len(found)} bytes"]
        allowed = [content(self.seed, i, UPDATED) for i in ([] if last is None else [last]) + later]
        for at in range(0, len(found), BLOCK):
            block = found[at:at + BLOCK]
            if not any(block == data[at:at + len(block)] for data in allowed):
                return [f"{path} has a block at {at} that was not written last"]
        return []

    def check_replaced(self, root, file):
        last, later = self.last_of("replace", file)
        path = f"{root}/replaced-{file}"
        if not os.path.exists(path):
            return [] if last is None else [f"{path} is missing"]
        found = self.read(path)
        if isinstance(found, str):
            return [found]
        for number in [*([] if last is None else [last]), *later]:
            data = content(self.seed, number, length_of(self.seed, number))
            # Nothing protects the beginning of a file that had no content before.
            if found == data or (last is None and data.startswith(found)):
                return []
        return [f"{path} has neither its old nor its new content"]
