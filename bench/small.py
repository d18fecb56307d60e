# SPDX-License-Identifier: Apache-2.0
"""The rows of small files, and of small writes."""

import os
import shutil

from .cases import SMALL_FILE, Case, Step, compared, nothing
from .machine import MIB, children_cpu_seconds, sync_file
from .program import Failure, command

SMALL_READ = 4 << 10


def small_cases(run):
    """The life cycle of many small files. Names and attributes are cold only if the caches of the whole machine may be
    dropped; otherwise the rows measure the requests that the kernel's caches let through."""
    def life(way, directory):
        files = {"path": directory.file("small"), "count": 200 if run.options.quick else 2000, "size": SMALL_FILE}

        def step(row, do, before=nothing, after=nothing):
            moved = files["count"] * SMALL_FILE if do == "create" else 0
            return Step(row, lambda _: {**run.worker.ask(do, **files), "bytes": moved}, before, after)

        def drop_names(_):
            os.sync() if run.options.drop_caches else None
            run.drop_caches()

        def compare(turn):
            if turn.warm_up:
                run.worker.ask("read-all", check=True, **files)

        return Case(way, directory, [
            step("create", "create"), step("stat", "stat", drop_names), step("stat-again", "stat"),
            step("list", "list", drop_names), step("list-again", "list", after=compare),
            step("unlink", "unlink", after=lambda _: sync_file(directory.file("small")))])

    def reads(way, directory):
        """Files that one request reads, opened, read and closed: first from the disk, then from the kernel's cache."""
        files = {"path": directory.file("small-reads"), "count": 200 if run.options.quick else 2000, "size": SMALL_READ}

        def make_files(_):
            run.worker.ask("create", **files)
            sync_file(directory.file("small-reads"))
            directory.make_cold(files["path"])

        def read(turn):
            answer = run.worker.ask("read-all", check=turn.warm_up, **files)
            return {**answer, "bytes": files["count"] * SMALL_READ}

        return Case(way, directory, [
            Step("small-read-cold", read, make_files),
            Step("small-read", read, after=lambda _: run.worker.ask("unlink", **files))])

    return [case(way, directory) for case in (life, reads) for way, directory in compared(run)] + git_cases(run)


def git_cases(run):
    """`git add` of many small files in a new repository."""
    count = 500

    def git(directory, *words):
        return command("git", "-C", directory.file("git"), *words)

    def case(way, directory):
        def make_repository(_):
            directory.remove("git")
            command("git", "init", "--quiet", "--template=", directory.file("git"))
            run.worker.ask("create", path=directory.file("git/files"), count=count, size=SMALL_READ)

        def add(_):
            cpu = children_cpu_seconds()
            git(directory, "add", ".")
            return {"amount": count, "cpu": children_cpu_seconds() - cpu, "bytes": count * SMALL_READ}

        def after(turn):
            if turn.warm_up:
                git(directory, "fsck", "--strict")
                if len(git(directory, "ls-files").splitlines()) != count:
                    raise Failure(f"git add did not add all of {count} files")
            directory.remove("git")

        return Case(way, directory, [Step("git-add", add, make_repository, after)])

    if shutil.which("git") is None:
        run.results.not_measured("git-add", "weightfs", "git is not installed")
        return []
    return [case(way, directory) for way, directory in compared(run)]


def small_write_cases(run):
    """Writes of a few bytes or of one block by ordinary calls, without fsync and with one after each."""
    seconds = 0.1 if run.options.quick else 1.0

    def append(way, directory, row, call):
        """A new file from open to close."""
        count = 2000 if run.options.quick else 50000
        path, size = directory.file("appended"), count * call

        def work(_):
            answer = run.worker.ask("write", path=path, size=size, call=call, sync=False)
            return {**answer, "amount": count, "bytes": size}

        def after(turn):
            if turn.warm_up:
                directory.make_cold(path)
                run.worker.ask("read", path=path, size=size, check=True)
            directory.remove("appended")

        return Case(way, directory, [Step(row, work, lambda _: directory.remove("appended"), after)])

    def overwrite(way, directory, row, threads=1, sync=True):
        """Blocks at random offsets, in a file of each thread's own that was just written: the host's cache has its
        pages, and all that an overwrite of them needs."""
        size = min(run.size, 256 * MIB) // threads
        paths = [directory.file(f"{row}-{number}") for number in range(threads)]

        def make_files(_):
            for path in paths:
                run.worker.ask("write", path=path, size=size)

        def work(turn):
            jobs = [{"do": "random-write", "path": path, "size": size, "call": SMALL_READ, "sync": sync,
                     "duration": seconds, "seed": (turn.seed + number) % (1 << 64)}
                    for number, path in enumerate(paths)]
            answer = run.worker.ask("together", jobs=jobs)
            return {**answer, "bytes": answer["amount"] * SMALL_READ}

        def check_and_remove(turn):
            for path in paths * turn.warm_up:
                directory.make_cold(path)
                run.worker.ask("read", path=path, size=size, check=True)
            for path in paths:
                os.unlink(path)
            sync_file(directory.path)

        return Case(way, directory, [Step(row, work, make_files, check_and_remove)])

    return [case for way, directory in compared(run) for case in (
        append(way, directory, "append-4", 4), append(way, directory, "append-4k", SMALL_READ),
        overwrite(way, directory, "write-4k-random", sync=False), overwrite(way, directory, "fsync-4k"),
        overwrite(way, directory, "fsync-4k-8", threads=8))]


GROUPS = [("small", small_cases, nothing), ("small-writes", small_write_cases, nothing)]
