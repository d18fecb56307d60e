# SPDX-License-Identifier: Apache-2.0
"""`weightfs bench`: how fast a mount is, beside the raw disk and the host's filesystem."""

import json
import os
import sys

from . import options, page, tables
from .program import Bar, Failure, Output, guarded
from .rows import ROWS, targets
from .run import VERSION, run_suite


def list_rows(output):
    if output is None or output.path != "-":
        Output("-").write(tables.Table("", ["row", "group", "to reference", "to host", "what"], [
            [row["id"], row["group"], *targets(row), row["title"]] for row in ROWS]).text())
    if output:
        fields = ("id", "group", "title", "unit", "at_least", "at_most")
        output.write(json.dumps({"version": VERSION, "rows": [{name: row[name] for name in fields} for row in ROWS]},
                                indent=2, ensure_ascii=False) + "\n")


def measure(chosen, outputs):
    """Measures, prints and writes the result."""
    bar = Bar("bench")
    try:
        result = run_suite(chosen, bar.show)
    except SystemExit as end:
        raise Failure("interrupted; what the benchmark made is removed") from end
    finally:
        bar.end()
    if all(output.path != "-" for output in outputs.values()):
        Output("-").write(tables.text(result))
    for name, output in outputs.items():
        output.write(json.dumps(result, indent=2, ensure_ascii=False) + "\n" if name == "json" else page.html(
            "weightfs bench", result["facts"], [result]))


def main(program, arguments):
    if arguments == ["--describe"]:
        print(options.describe())
        return 0
    outputs = {}

    def work():
        try:
            measure(chosen, outputs) if not chosen.list else list_rows(outputs.get("json"))
        except (Failure, OSError) as error:
            name = f"{error.filename}: {error.strerror}" if getattr(error, "filename", None) else str(error)
            print(f"weightfs: {name}", file=sys.stderr)
            return 1
        finally:
            for output in outputs.values():
                output.discard()
        return 0

    try:
        chosen = options.parse(program, arguments)
        if chosen.json and chosen.report and os.path.realpath(chosen.json) == os.path.realpath(chosen.report):
            raise Failure(f"--json and --report name one file, {chosen.json}; give two")
        for name in ("json", "report"):
            if getattr(chosen, name):
                outputs[name] = Output(getattr(chosen, name))
    except Failure as error:
        for output in outputs.values():
            output.discard()
        print(f"weightfs: {error}", file=sys.stderr)
        return 1
    return work() if chosen.list else guarded(work)
