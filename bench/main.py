# SPDX-License-Identifier: Apache-2.0
"""`weightfs bench`: how fast a mount is, beside the raw disk and the host's filesystem."""

import json
import os
import sys

from . import options, page, tables
from .program import Bar, Failure, check_output, guarded, write
from .rows import ROWS, targets
from .run import VERSION, run_suite


def list_rows(chosen):
    if chosen.json != "-":
        write("-", tables.Table("", ["row", "group", "to reference", "to host", "what"], [
            [row["id"], row["group"], *targets(row), row["title"]] for row in ROWS]).text())
    if chosen.json:
        fields = ("id", "group", "title", "unit", "at_least")
        rows = [{name: row[name] for name in fields} for row in ROWS]
        write(chosen.json, json.dumps({"version": VERSION, "rows": rows}, indent=2, ensure_ascii=False) + "\n")


def measure(chosen):
    """Measures, prints and writes the result."""
    bar = Bar("bench")
    try:
        result = run_suite(chosen, bar.show)
    except SystemExit as end:
        raise Failure("interrupted; what the benchmark made is removed") from end
    finally:
        bar.end()
    if "-" not in (chosen.json, chosen.report):
        write("-", tables.text(result))
    if chosen.json:
        write(chosen.json, json.dumps(result, indent=2, ensure_ascii=False) + "\n")
    if chosen.report:
        write(chosen.report, page.html("weightfs bench", result["facts"], [result]))


def check_files(chosen):
    """Raises Failure if a result cannot be written."""
    if chosen.json and chosen.report and os.path.realpath(chosen.json) == os.path.realpath(chosen.report):
        raise Failure(f"--json and --report name one file, {chosen.json}; give two")
    for path in filter(None, (chosen.json, chosen.report)):
        check_output(path)


def reported(work, chosen):
    """Calls work(chosen). Returns the exit status; an error is one line."""
    try:
        work(chosen)
        return 0
    except (Failure, OSError) as error:
        name = f"{error.filename}: {error.strerror}" if getattr(error, "filename", None) else str(error)
        print(f"weightfs: {name}", file=sys.stderr)
        return 1


def main(program, arguments):
    if arguments == ["--describe"]:
        print(options.describe())
        return 0
    chosen = options.parse(program, arguments)
    if chosen.list:
        return reported(check_files, chosen) or reported(list_rows, chosen)
    return reported(check_files, chosen) or guarded(lambda: reported(measure, chosen))
