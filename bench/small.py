# SPDX-License-Identifier: Apache-2.0
"""The rows of small files, and of small writes."""

import os
import shutil

from .cases import SMALL_FILE, Case, Step, by_fio, compared, nothing, write
from .machine import MIB, children_cpu_seconds, sync_file
from .program import Failure, command

SMALL_READ = 4 << 10


def small_cases(run):
    """The life cycle of many small files. Names and attributes are cold only if the caches of the whole machine may be
    dropped; otherwise the rows measure the requests that the kernel's caches let through."""
    count = 200 if run.options.quick else 2000

    def drop_names(_):
        os.sync() if run.options.drop_caches else None
        run.drop_caches()

    def life(directory):
        files = {"path": directory.file("small"), "count": count, "size": SMALL_FILE}

        def step(row, do, before=nothing, after=nothing):
            return Step(row, lambda _: run.worker.ask(do, sync=False, **files), before, after)

        def compare(turn):
            if turn.warm_up:
                run.worker.ask("read-all", check=True, **files)

        return [step("create", "create"), step("stat", "stat", drop_names), step("stat-again", "stat"),
                step("list", "list", drop_names), step("list-again", "list", after=compare),
                step("unlink", "unlink", after=lambda _: sync_file(files["path"]))]

    def reads(directory):
        """Files that one request reads, opened, read and closed: first from the disk, then from the kernel's cache."""
        files = {"path": directory.file("small-reads"), "count": count, "size": SMALL_READ}

        def make_files(_):
            run.worker.ask("create", sync=False, **files)
            sync_file(files["path"])
            directory.make_cold(files["path"])

        def work(turn):
            return run.worker.ask("read-all", check=turn.warm_up, **files)

        return [Step("small-read-cold", work, make_files),
                Step("small-read", work, after=lambda _: run.worker.ask("unlink", **files))]

    return [Case(way, directory, make(directory)) for make in (life, reads) for way, directory in compared(run)] + (
        git_cases(run))


def git_cases(run):
    """`git add` of many small files in a new repository."""
    count = 500

    def case(way, directory):
        repository = directory.file("git")

        def make_repository(_):
            directory.remove("git")
            command("git", "init", "--quiet", "--template=", repository)
            run.worker.ask("create", path=f"{repository}/files", count=count, size=SMALL_READ, sync=False)

        def add(_):
            cpu = children_cpu_seconds()
            command("git", "-C", repository, "add", ".")
            return {"amount": count, "cpu": children_cpu_seconds() - cpu, "bytes": count * SMALL_READ}

        def after(turn):
            if turn.warm_up:
                command("git", "-C", repository, "fsck", "--strict")
                if len(command("git", "-C", repository, "ls-files").splitlines()) != count:
                    raise Failure(f"git add did not add all of {count} files")

        return Case(way, directory, [Step("git-add", add, make_repository, after)])

    if shutil.which("git") is None:
        run.results.not_measured("git-add", "weightfs", "git is not installed")
        return []
    return [case(way, directory) for way, directory in compared(run)]


def small_write_cases(run):
    """Writes of a few bytes or of one block by ordinary calls, without fsync and with one after each."""
    seconds, count = (0.1, 2000) if run.options.quick else (1.0, 50000)

    def overwrite(way, directory, row, jobs=1, sync=True):
        """Blocks at random offsets, in a file of each thread's own that was just written: the host's cache has its
        pages, and all that an overwrite of them needs."""
        size = min(run.size, 256 * MIB) // jobs
        paths = [directory.file(f"{row}-{number}") for number in range(jobs)]

        def make_files(_):
            for path in paths:
                run.worker.ask("write", path=path, size=size)

        def remove(_):
            for path in paths:
                os.unlink(path)
            sync_file(directory.path)

        return by_fio(run, way, directory, row, "randwrite", lambda: {"path": directory.file(f"{row}-%")}, make_files,
                      remove, size=size, call=SMALL_READ, jobs=jobs, sync=sync, direct=False, seconds=seconds)

    cases = []
    for way, directory in compared(run):
        cases += [write(run, way, directory, row, size=count * call, calls=count, call=call, sync=False)
                  for row, call in (("append-4", 4), ("append-4k", SMALL_READ))]
        cases += [*overwrite(way, directory, "write-4k-random", sync=False), *overwrite(way, directory, "fsync-4k"),
                  *overwrite(way, directory, "fsync-4k-8", jobs=8)]
    return cases


GROUPS = [("small", small_cases), ("small-writes", small_write_cases)]
