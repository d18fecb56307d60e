# SPDX-License-Identifier: Apache-2.0
"""Writes the report as one HTML page that needs no network, and as Markdown with the same tables."""

import re
from html import escape
from pathlib import Path

import drawing
from report.sections import Table, summary, tables

TEMPLATE = Path(__file__).with_name("page.html")
NUMBER = re.compile(r"-|[0-9][0-9.,]*( \([^)]*\))?")


def problems(entry):
    """The style and the line of a part that failed or could not run."""
    if entry["state"] == "failed":
        return [("alarm", f"{entry['title']}: FAILED: {entry['reason']}")]
    return [("missing", f"{entry['title']}: NOT MEASURED: {entry['reason']}")] * (entry["state"] == "missing")


def busy(report):
    """A warning if other work ran on the machine."""
    load = float(report["facts"]["load average at the start"].split()[0])
    processors = int(report["facts"]["processors"].split()[0])
    return [] if load < processors / 2 else [("alarm", (
        f"The load average was {load} on {processors} processors before the first measurement: other work slowed these "
        f"figures. Compare ratios, not seconds, and repeat the run on an idle machine."))]


def sections(report, drawings):
    """Name, title and content of each section: (style, text), ("figure", svg) and tables."""
    parts = report["parts"]
    yield "summary", "Summary", [*(line for entry in parts for line in problems(entry)), *busy(report), summary(report)]
    yield "machine", "The machine", [Table("", ["", ""], [list(fact) for fact in report["facts"].items()])]
    for entry in parts:
        name, measured = entry["name"], entry["state"] == "done"
        yield name, entry["title"], [("text", entry["about"]), *problems(entry),
                                     *([("figure", drawings.get(name, "")), *tables(entry)] if measured else [])]


def lines_of(table):
    """The texts below a table."""
    return [(style, text) for style, texts in (("soft", table.notes), ("missing", table.missing),
                                               ("alarm", table.alarms)) for text in texts]


def html_line(style, text):
    return text if style == "figure" else f'<p class="{style}">{escape(text)}</p>'


def html_table(table):
    """The table, with columns of numbers aligned at the right, and the texts below it."""
    number = [column > 0 and all(NUMBER.fullmatch(row[column]) for row in table.rows)
              for column in range(len(table.head))]

    def line(tag, cells):
        return "<tr>" + "".join(f"<{tag}{' class=number' * right} data-name=\"{escape(name)}\">{escape(text)}</{tag}>"
                                for right, name, text in zip(number, table.head, cells)) + "</tr>"

    lines = [f"<h3>{escape(table.caption)}</h3>"] * bool(table.caption)
    if table.rows:
        lines += ['<div class="scroll"><table>', "<thead>", line("th", table.head), "</thead>",
                  *(line("td", row) for row in table.rows), "</table></div>"]
    return "\n".join([*lines, *(html_line(*each) for each in lines_of(table))])


def html(report, drawings):
    """drawings: the name of each measured part -> its <svg> element."""
    found = [f'<section id="{name}"><h2>{escape(title)}</h2>\n' + "\n".join(
        html_table(each) if isinstance(each, Table) else html_line(*each) for each in content) + "\n</section>"
        for name, title, content in sections(report, drawings)]
    values = {"COLORS": drawing.stylesheet(), "SECTIONS": "\n".join(found)}
    return re.sub(r"@(\w+)@", lambda match: values.get(match[1], match[0]), TEMPLATE.read_text(encoding="utf-8"))


def markdown_line(style, text):
    return [] if style == "figure" else [f"**{text}**" if style == "alarm" else text]


def markdown_table(table):
    def line(cells):
        return "| " + " | ".join(text.replace("|", "\\|") for text in cells) + " |"

    rows = [line(table.head), "|" + "---|" * len(table.head), *map(line, table.rows)] if table.rows else []
    return [f"### {table.caption}"] * bool(table.caption) + ["\n".join(rows)] * bool(rows) + [
        text for each in lines_of(table) for text in markdown_line(*each)]


def markdown(report):
    found = ["# Report"]
    for _, title, content in sections(report, {}):
        found.append(f"## {title}")
        for each in content:
            found += markdown_table(each) if isinstance(each, Table) else markdown_line(*each)
    return "\n\n".join(found) + "\n"
