# SPDX-License-Identifier: Apache-2.0
"""Comparisons of ways to do the same, in turns, as a result for tables.py."""

import json
import statistics
import sys
import time

from . import tables
from .verdict import in_turns, spread


def ratio(ours, theirs, unit="s"):
    """How many times as fast ours is: the median of the rounds' ratios, whose measurements ran under similar load."""
    return statistics.median(b / a if unit == "s" else a / b for a, b in zip(ours, theirs))


def measure(values, rounds, work, show=lambda text, part: None):
    """Calls work(way) for every way of `values` in each round, in a new order, and appends what it returns. The first
    round, which allocates memory, does not count."""
    for turn, at, way in in_turns(values, rounds):
        show(f"{f'round {turn} of {rounds}' if turn else 'warming up'}: {way}",
             (turn + at / len(values)) / (rounds + 1))
        value = work(way)
        if turn:
            values[way].append(value)
    return values


def complete(values):
    """The values of the rounds that every way has finished, if a stop came between."""
    least = min(map(len, values.values()))
    return {way: each[:least] for way, each in values.items()}


def row(name, unit, values, base=None, **fields):
    """values: way -> its values in all rounds. Without a base, weightfs is compared with every other way; with it, every
    way with the base."""
    checks = ([{"way": way, "against": base, "value": ratio(values[way], values[base], unit)} for way in values] if base
              else [{"against": way, "value": ratio(values["weightfs"], values[way], unit)} for way in values
                    if way != "weightfs"])
    ways = {way: {**spread(each), "samples": each} for way, each in values.items()}
    return {"id": name, "group": fields.get("table", name), "title": name, "unit": unit, "ways": ways,
            "checks": checks, "notes": [], "not_measured": {}, **fields}


def result(program, rounds, rows, summary=(), **more):
    return {"version": 1, "program": program, "facts": {"time": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())},
            "rounds": rounds, "rows": rows, "curves": [], "summary": list(summary), **more}


def output(found, as_json):
    """Prints a result."""
    print(json.dumps(found, indent=1) if as_json else tables.text(found), end="\n" if as_json else "")
    sys.stdout.flush()
