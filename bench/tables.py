# SPDX-License-Identifier: Apache-2.0
"""Results as tables: of the terminal and of HTML.

A result is {"version", "program", "facts", "rounds", "rows"}. A row has {"id", "group", "title", "unit", "ways",
"checks", "notes", "not_measured"}; its ways are {name: {"median", "min", "max", "samples"}}, and a check compares a
way ("way", or "weightfs") with another one ("against"): {"value"}, and if there is a target {"at_least" or "at_most",
"state"}. Rates are in bytes, reads, files or the like per second; the unit "s" is seconds."""

import dataclasses
import re
from html import escape

from .machine import MIB

NOISY = 0.20
NUMBER = re.compile(r"-?|[0-9][0-9.,]*[kM]?( ×)?( \([^)]*\))?( (ok|short|over) [≤≥] [0-9.]+)?")
ASIDE = ("noverify", "memory")   # ways that have no column


class Cell(str):
    """A text with a bar below it: its color, and its length as a part of the cell."""

    bar = ""

    def with_bar(self, color, part):
        self.bar = f' style="--bar: var(--{color}); --part: {part:.0%}"'
        return self


@dataclasses.dataclass
class Table:
    caption: str
    head: list
    rows: list   # lists of strings, as long as the head

    def text(self):
        widths = [max(len(row[column]) for row in [self.head, *self.rows]) for column in range(len(self.head))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip()
                 for row in [self.head, *self.rows]]
        return "\n".join([*[self.caption] * bool(self.caption), *lines]) + "\n"

    def html(self):
        number = [column > 0 and all(NUMBER.fullmatch(row[column]) for row in self.rows)
                  for column in range(len(self.head))]

        def line(tag, cells):
            return "<tr>" + "".join(
                f"<{tag}{' class=number' * right}{getattr(text, 'bar', '')} data-name=\"{escape(name)}\">"
                f"{escape(text)}</{tag}>" for right, name, text in zip(number, self.head, cells)) + "</tr>"

        return "\n".join([*[f"<h3>{escape(self.caption)}</h3>"] * bool(self.caption),
                          '<div class="scroll"><table>', "<thead>", line("th", self.head), "</thead>",
                          *(line("td", row) for row in self.rows), "</table></div>"])


def figure(unit, value):
    """"3.71", "26.1k": three digits."""
    if unit == "s":
        return f"{value:.3f}"
    if unit == "GB/s":
        return f"{value / 1e9:.2f}"
    if value >= 1e6:
        return f"{value / 1e6:.2f}M"
    return f"{value / 1e3:.1f}k" if value >= 1e3 else f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def way_text(row, way):
    """The median, with minimum and maximum."""
    if way not in row["ways"]:
        return "-"
    low, middle, high = (figure(row["unit"], row["ways"][way][key]) for key in ("min", "median", "max"))
    most = max(each["median"] for each in row["ways"].values()) or 1
    return Cell(middle if len(row["ways"][way]["samples"]) < 2 else f"{middle} ({low}–{high})").with_bar(
        "ours" if way.startswith(("weightfs", "offloaded")) else "host", row["ways"][way]["median"] / most)


def check_text(check):
    bound = "at_most" if "at_most" in check else "at_least"
    if bound not in check:
        return f"{check['value']:.2f}"
    word = "ok" if check["state"] == "ok" else "over" if bound == "at_most" else "short"
    return f"{check['value']:.2f} {word} {'≤' if bound == 'at_most' else '≥'} {check[bound]:.2f}"


def ratio_of(row, against, way=None):
    found = next((check for check in row["checks"] if check["against"] == against and check.get("way") == way), None)
    return "-" if found is None else check_text(found)


def columns(rows):
    """The ways that have a column, and those that have one for the ratios to them, or None if the ways are lines."""
    ways = list(dict.fromkeys(way for row in rows for way in row["ways"] if way not in ASIDE))
    checks = [check for row in rows for check in row["checks"]]
    if any("way" in check for check in checks):
        return ways, None
    return ways, [way for way in ways if any(check["against"] == way for check in checks)]


def table_of(caption, rows, name):
    ways, against = columns(rows)
    if against is None:   # the rows are the columns
        base = next(check["against"] for row in rows for check in row["checks"])
        return Table(f"{caption}, and how many times as fast as {base}", [""] + [
            text for row in rows for text in (row["title"], "×")],
            [[way, *(text for row in rows for text in (way_text(row, way), ratio_of(row, base, way)))] for way in ways])
    cost = caption != "files/s" and any("cpu_seconds_per_gb" in row["ways"].get("weightfs", {}) for row in rows)
    lines = [[row[name], *(way_text(row, way) for way in ways), *(ratio_of(row, way) for way in against)]
             + [f"{row['ways'].get('weightfs', {}).get('cpu_seconds_per_gb', 0):.2f}".replace("0.00", "")] * cost
             for row in rows]
    return Table(caption, ["", *ways, *(f"to {way}" for way in against), *["CPU s/GB"] * cost], lines)


def tables(result, name="title"):
    """The tables of a result: one for each unit, or for each `table` that rows name. name: title or id."""
    groups = {}
    for row in result["rows"]:
        if row["ways"]:
            groups.setdefault(row.get("table") or row["unit"], []).append(row)
    return [table_of(caption, rows, name) for caption, rows in groups.items()]


def lines(result):
    """(style, text) of what has no column; a style is "soft", "missing" or "alarm"."""
    for row in result["rows"]:
        ways, against = columns([each for each in result["rows"] if each["unit"] == row["unit"]])
        for check in row["checks"]:
            if against is not None and check["against"] not in against:
                yield "soft", f"{row['id']}: to {check['against']} {check_text(check)}"
        yield from (("soft", f"{row['id']}: {note}") for note in row.get("notes", []))
        yield from (("missing", f"{row['id']}, {way}: not measured: {why}")
                    for way, why in row.get("not_measured", {}).items())
    yield from (("soft", note) for note in result.get("notes", []))
    yield from (("alarm", text) for text in result.get("alarms", []))
    if "daemon" in result:
        yield from daemon_lines(result["daemon"])
        yield from noise_lines(result["noise"], result["rounds"])


def daemon_lines(daemon):
    limit, peak = daemon["memory_limit_bytes"] / MIB, daemon["memory_peak_bytes"] / MIB
    if limit:
        yield "soft", "the daemon's memory, MiB: at most " + check_text(
            {"value": peak, "at_most": limit, "state": "ok" if peak <= limit else "short"})
    yield "soft", f"the daemon's processor time while idle: {daemon['idle_cpu'] * 1000:.1f} ms per second"


def noise_lines(noise, rounds):
    reference = noise["read_reference"]["median"] + noise["write_reference"]["median"]
    variation = ("these rows have no reference" if not reference else "unknown after one round" if rounds == 1 else
                 f"the references varied by {noise['widest']:.0%} over {rounds} rounds".replace("%", " %"))
    yield "soft", (f"noise: {variation}; load average {noise['load_average']:.1f}; {noise['steal'] * 100:.1f} % of the "
                   "processors' time was stolen")
    if noise["widest"] > NOISY:
        yield "alarm", ("the run was noisy: note the ranges of these figures, or repeat it on an idle machine")


def rounds_text(result):
    return (f"medians of {result['rounds']} rounds (minimum–maximum)" if result["rounds"] > 1 else
            "one round, which only shows that the benchmark works")


def targets_text(result):
    checks = [check for row in result["rows"] for check in row["checks"] if check.get("state", "shown") != "shown"]
    return f"{sum(check['state'] == 'ok' for check in checks)} of {len(checks)} targets met; " * bool(checks)


def text(result):
    """What a program prints on a terminal."""
    facts = "".join(f"{name:<18} {value}\n" for name, value in result["facts"].items())
    return "\n".join([facts, f"GB/s is 10^9 bytes per second; {targets_text(result)}{rounds_text(result)}.\n",
                      *(table.text() for table in tables(result, "id")),
                      "".join(f"{line}\n" for _, line in lines(result))])


def summary(results):
    """The rows that the results name, each with the comparison that says most."""
    rows = []
    for result in results:
        for row in (row for name in result.get("summary", []) for row in result["rows"] if row["id"] == name):
            check = max((check for check in row["checks"] if check["against"] != check.get("way")
                         and check.get("way", "weightfs").startswith(("weightfs", "offloaded"))
                         and check["against"] != "reference"),
                        key=lambda check: check["value"], default=None)
            if check:
                ways = (check.get("way", "weightfs"), check["against"])
                rows.append([result["title"], f"{row['title']}, {row['unit']}", *(
                    text for way in ways for text in (way, figure(row["unit"], row["ways"][way]["median"]))),
                    f"{check['value']:.2f}"])
    return Table("", ["", "measured", "way", "figure", "compared with", "its figure", "times as fast"], rows)
