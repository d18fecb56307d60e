# SPDX-License-Identifier: Apache-2.0
"""Writes the report as one HTML page that needs no network, and as Markdown with the same tables."""

import re
from html import escape
from pathlib import Path

from report.sections import tables

TEMPLATE = Path(__file__).with_name("page.html")
NUMBER = re.compile(r"-|[0-9][0-9.,]*( GB/s| \w+/s| [KMG]iB)?( \([^)]*\))?")


def alarms(report):
    """One line for each part that failed or could not run."""
    return [f"{entry['title']}: {'FAILED' if entry['state'] == 'failed' else 'NOT MEASURED'}: {entry['reason']}"
            for entry in report["parts"] if entry["state"] != "done"]


def busy(report):
    """A warning if other work ran on the machine; otherwise an empty string."""
    load = float(report["facts"]["load average at the start"].split()[0])
    processors = int(report["facts"]["processors"].split()[0])
    return "" if load < processors / 2 else (
        f"The load average was {load} on {processors} processors before the first measurement: other work slowed these "
        f"figures. Compare ratios, not seconds, and repeat the run on an idle machine.")


def html_table(table):
    def cell(tag, text):
        number = ' class="number"' if tag == "td" and NUMBER.fullmatch(text) else ""
        return f"<{tag}{number}>{escape(text)}</{tag}>"

    lines = [f"<h3>{escape(table.caption)}</h3>", '<div class="scroll"><table>',
             "<tr>" + "".join(cell("th", name) for name in table.head) + "</tr>"]
    lines += ["<tr>" + "".join(cell("td", text) for text in row) + "</tr>" for row in table.rows]
    lines += ["</table></div>", *(f'<p class="soft">{escape(note)}</p>' for note in table.notes)]
    return "\n".join(lines + [f'<p class="alarm">{escape(text)}</p>' for text in table.alarms])


def html_section(entry, drawing):
    lines = [f'<section id="{entry["name"]}"><h2>{escape(entry["title"])}</h2>', f"<p>{escape(entry['about'])}</p>"]
    if entry["state"] == "done":
        lines += [drawing, *map(html_table, tables(entry))]
    else:
        lines += [f'<p class="alarm">{escape(line)}</p>' for line in alarms({"parts": [entry]})]
    return "\n".join([*lines, "</section>"])


def html(report, drawings):
    """drawings: the name of each measured part -> its <svg> element."""
    warnings = [*alarms(report), *filter(None, [busy(report)])]
    facts = "".join(f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>"
                    for name, value in report["facts"].items())
    values = {"WARNINGS": "".join(f'<p class="alarm">{escape(line)}</p>' for line in warnings), "FACTS": facts,
              "SECTIONS": "\n".join(html_section(entry, drawings.get(entry["name"])) for entry in report["parts"])}
    return re.sub(r"@(\w+)@", lambda found: values[found[1]], TEMPLATE.read_text(encoding="utf-8"))


def markdown_table(head, rows):
    def line(cells):
        return "| " + " | ".join(text.replace("|", "\\|") for text in cells) + " |"

    return "\n".join([line(head), "|" + "---|" * len(head), *map(line, rows)])


def markdown(report):
    warnings = [*alarms(report), *filter(None, [busy(report)])]
    pieces = ["# Report", *(f"**{text}**" for text in warnings),
              markdown_table(["machine", ""], [list(fact) for fact in report["facts"].items()])]
    for entry in report["parts"]:
        pieces += [f"## {entry['title']}", entry["about"]]
        if entry["state"] != "done":
            pieces += [f"**{line}**" for line in alarms({"parts": [entry]})]
            continue
        for table in tables(entry):
            pieces += [f"### {table.caption}", markdown_table(table.head, table.rows), *table.notes,
                       *(f"**{text}**" for text in table.alarms)]
    return "\n\n".join(pieces) + "\n"
