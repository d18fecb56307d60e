# SPDX-License-Identifier: Apache-2.0
"""Results as one self-contained page, which loads nothing and runs no script."""

import string
from html import escape
from pathlib import Path

from . import drawing, tables

PAGE = string.Template(Path(__file__).with_name("page.html").read_text(encoding="utf-8"))


def problems(result):
    """The lines of a part of a report that failed or could not run."""
    known = {"failed": ("alarm", "FAILED"), "missing": ("missing", "NOT MEASURED")}
    return [(style, f"{result['title']}: {word}: {result['reason']}") for state, (style, word) in known.items()
            if result.get("state") == state]


def sections(facts, results, alarms):
    """Yields (title, content): tables and (style, text)."""
    if len(results) > 1:
        found = tables.summary(results)
        yield "Summary", [*(("alarm", text) for text in alarms),
                          *(line for result in results for line in problems(result)), *[found] * bool(found.rows)]
    for result in results:
        content = [("soft", text) for text in [result.get("about")] if text] + problems(result)
        if "rows" in result:
            content += [("soft", f"{tables.targets_text(result)}{tables.rounds_text(result)}. GB/s is 10^9 bytes per "
                                 "second."), *tables.tables(result), *tables.lines(result)]
        yield result.get("title", "Figures"), content
    yield "The machine", [tables.Table("", ["", ""], [[name, str(value)] for name, value in facts.items()])]


def html_of(content):
    return f'<p class="{content[0]}">{escape(content[1])}</p>' if isinstance(content, tuple) else content.html()


def html(title, facts, results, alarms=()):
    found = "\n".join(f"<section><h2>{escape(name)}</h2>\n" + "\n".join(map(html_of, content)) + "\n</section>"
                      for name, content in sections(facts, results, alarms))
    return PAGE.substitute(title=escape(title), colors=drawing.stylesheet(), sections=found)
