# SPDX-License-Identifier: Apache-2.0
"""Results as one self-contained page, which loads nothing and runs no script, and as Markdown with the same tables."""

from html import escape

from . import drawing, tables

PAGE = """<!DOCTYPE html>
<!-- SPDX-License-Identifier: Apache-2.0 -->
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
{colors}
body {{ margin: 0; background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, "Segoe UI", sans-serif; }}
main {{ max-width: 1000px; margin: 0 auto; padding: 36px 20px; }}
section {{ background: var(--card); border: 1px solid var(--grid); border-radius: 10px; padding: 18px 24px;
  margin: 0 0 18px; }}
h1 {{ font-size: 28px; margin: 0 0 12px; }}
h2 {{ font-size: 20px; margin: 0; }}
h3 {{ font-size: 15px; margin: 18px 0 4px; }}
p {{ margin: 6px 0; max-width: 90ch; overflow-wrap: anywhere; }}
svg {{ display: block; width: 100%; height: auto; max-width: 640px; margin: 10px 0; }}
.scroll {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-size: 14px; }}
th, td {{ padding: 4px 16px 4px 0; text-align: left; border-bottom: 1px solid var(--grid); vertical-align: top; }}
th {{ color: var(--soft); font-weight: 500; }}
th.number, td.number {{ text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }}
/* A figure has a bar, whose length is the part of the largest one that it is compared with. */
td[style] {{ background: linear-gradient(var(--bar), var(--bar)) 0 100% / var(--part) 4px no-repeat; }}
.soft {{ color: var(--soft); font-size: 14px; }}
.missing {{ color: var(--soft); background: var(--page); border-radius: 6px; padding: 6px 12px; }}
.alarm {{ color: var(--alarm); background: var(--alarm-back); border-radius: 6px; padding: 6px 12px; }}
/* In a narrow window a row of a table is a list of its names and values. */
@media (max-width: 800px) {{
  main {{ padding: 16px 8px; }}
  section {{ padding: 14px 12px; }}
  table, tbody, tr {{ display: block; }}
  thead {{ display: none; }}
  tr {{ border-bottom: 1px solid var(--grid); padding: 5px 0; }}
  td {{ display: flex; justify-content: space-between; gap: 20px; border: 0; padding: 0; overflow-wrap: anywhere; }}
  td:first-child {{ display: block; font-weight: 600; }}
  td:empty, td:first-child::before {{ display: none; }}
  td::before {{ content: attr(data-name); color: var(--soft); font-weight: 400; }}
}}
</style>
</head>
<body><main>
<h1>{title}</h1>
{sections}
</main></body>
</html>
"""


def problems(result):
    """The lines of a part of a report that failed or could not run."""
    known = {"failed": ("alarm", "FAILED"), "missing": ("missing", "NOT MEASURED")}
    return [(style, f"{result['title']}: {word}: {result['reason']}") for state, (style, word) in known.items()
            if result.get("state") == state]


def sections(facts, results, alarms):
    """Yields (title, content): tables, (style, text), and figures as SVG."""
    if len(results) > 1:
        found = tables.summary(results)
        yield "Summary", [*(("alarm", text) for text in alarms),
                          *(line for result in results for line in problems(result)), *[found] * bool(found.rows)]
    for result in results:
        content = [("soft", text) for text in [result.get("about")] if text] + problems(result)
        if "rows" in result:
            curves = [drawing.svg(*drawing.curves(result["curves"]))] * bool(result.get("curves"))
            content += [("soft", f"{tables.targets_text(result)}{tables.rounds_text(result)}. GB/s is 10^9 bytes per "
                                 "second."), *tables.tables(result), *curves, *tables.lines(result)]
        yield result.get("title", "Figures"), content
    yield "The machine", [tables.Table("", ["", ""], [[name, str(value)] for name, value in facts.items()])]


def html_of(content):
    if isinstance(content, tuple):
        return f'<p class="{content[0]}">{escape(content[1])}</p>'
    return content if isinstance(content, str) else content.html()


def html(title, facts, results, alarms=()):
    found = "\n".join(f"<section><h2>{escape(name)}</h2>\n" + "\n".join(map(html_of, content)) + "\n</section>"
                      for name, content in sections(facts, results, alarms))
    return PAGE.format(title=escape(title), colors=drawing.stylesheet(), sections=found)


def markdown(title, facts, results, alarms=()):
    found = [f"# {title}"]
    for name, content in sections(facts, results, alarms):
        found.append(f"## {name}")
        for each in content:
            if isinstance(each, tables.Table):
                found.append(each.markdown())
            elif isinstance(each, tuple):
                found.append(f"**{each[1]}**" if each[0] == "alarm" else each[1])
    return "\n\n".join(found) + "\n"
