# SPDX-License-Identifier: Apache-2.0
"""The rows of small files."""

import os

from suite.cases import SMALL_FILE, Case, Step, compared, nothing

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
            step("unlink", "unlink", after=lambda _: directory.sync("small"))])

    def reads(way, directory):
        """Files that one request reads, opened, read and closed: first from the disk, then from the kernel's cache."""
        files = {"path": directory.file("small-reads"), "count": 200 if run.options.quick else 2000, "size": SMALL_READ}

        def make_files(_):
            run.worker.ask("create", **files)
            directory.sync("small-reads")
            directory.make_cold(files["path"])

        def read(turn):
            answer = run.worker.ask("read-all", check=turn.warm_up, **files)
            return {**answer, "bytes": files["count"] * SMALL_READ}

        return Case(way, directory, [
            Step("small-read-cold", read, make_files),
            Step("small-read", read, after=lambda _: run.worker.ask("unlink", **files))])

    return [case(way, directory) for case in (life, reads) for way, directory in compared(run)]


GROUPS = [("small", small_cases, nothing)]
