# SPDX-License-Identifier: Apache-2.0
"""Comparisons of ways to do the same, in turns, as a result for tables.py."""

import json
import statistics
import sys

from . import machine, tables
from .machine import size_text
from .program import Bar, Parser, Stop, directory, number_from, run, size
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


def row(name, unit, values, base=None, **fields):
    """values: way -> its values in all rounds. With a base, every way is compared with it; without, weightfs with every
    other way."""
    checks = ([{"way": way, "against": base, "value": ratio(values[way], values[base], unit)} for way in values] if base
              else [{"against": way, "value": ratio(values["weightfs"], values[way], unit)} for way in values
                    if way != "weightfs"])
    ways = {way: {**spread(each), "samples": each} for way, each in values.items()}
    return {"id": name, "group": fields.get("table", name), "title": name, "unit": unit, "ways": ways,
            "checks": checks, "notes": [], "not_measured": {}, **fields}


def result(program, directory, size_bytes, rounds, rows, summary=(), **more):
    """The result of a program that measured data of a size in a directory."""
    return {"version": 1, "program": program, "facts": {**machine.facts(directory), "size": size_text(size_bytes)},
            "size_bytes": size_bytes, "rounds": rounds, "rows": rows, "summary": list(summary), **more}


def output(found, as_json):
    """Prints a result."""
    print(json.dumps(found, indent=1) if as_json else tables.text(found), end="\n" if as_json else "")
    sys.stdout.flush()


def parser(name, doc, what, default_size, rounds, default_rounds):
    """The arguments of a program that compares ways in a directory. what: the meaning of --size."""
    found = Parser(prog=name, description=doc)
    found.add_argument("directory", metavar="DIR", type=directory, help="a mount or any directory; what is written is "
                       "removed again")
    found.add_argument("--size", type=size, default=default_size,
                       help=f"{what}: a number with K, M or G (default {default_size})")
    found.add_argument("--rounds", type=number_from(1), default=default_rounds,
                       help=f"{rounds} (default {default_rounds})")
    found.add_argument("--json", action="store_true", help="print all measurements as JSON")
    return found


def main(name, args, work, result_of, errors=()):
    """Runs work(values, show), which fills `values`, and prints the result, also that of the complete rounds before a
    stop. Returns the exit status."""
    def program():
        values, bar = {}, Bar(name)
        try:
            work(values, bar.show)
        except Stop:
            if least := min(map(len, values.values()), default=0):   # the rounds that every way has finished
                output(result_of({way: each[:least] for way, each in values.items()}), args.json)
            raise
        except (OSError, RuntimeError, *errors) as error:
            print(f"{name}: {error}", file=sys.stderr)
            return 1
        finally:
            bar.end()
        output(result_of(values), args.json)
        return 0

    return run(name, program)
