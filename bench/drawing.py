# SPDX-License-Identifier: Apache-2.0
"""A figure as SVG, whose colors follow the light or dark scheme of the page. As a program, which scripts/picture calls:
draws the ratios of the rows in RATIOS of a result of `weightfs bench --json`."""

import json
import math
import sys
from html import escape
from pathlib import Path

# Variable -> (light value, dark value).
THEMES = {"page": ("#f7f7f5", "#111318"), "card": ("#ffffff", "#1a1d24"), "ink": ("#1b1e25", "#eceef2"),
          "soft": ("#5b6170", "#a7adba"), "grid": ("#e2e4e9", "#2d313b"), "ours": ("#2166d2", "#5b9bf8"),
          "host": ("#d97a21", "#eb9a4a"), "alarm": ("#9a3412", "#f2a06b"), "alarm-back": ("#fcebdf", "#3a2314")}
WIDTH, MARGIN, SMALL, LINE = 454, 14, 11, 15   # of a figure; at its edges; the font; from a text to the next
TICKS = [10.0 ** exponent * step for exponent in range(-3, 6) for step in (1, 2, 5)]
# (row, what it is compared with, what it is to a user, how it is measured). Rows that were not measured are left out.
RATIOS = (
    ("write-1m", "host", "Write a large file", "1 MiB calls, then fsync"),
    ("read-1m", "host", "Read a large file", "1 MiB calls, cold cache"),
    ("torch-save", "host", "Save a checkpoint with torch", "torch.save, then fsync"),
    ("torch-load", "host", "Load a checkpoint with torch", "torch.load, cold cache"),
    ("safetensors-load", "host", "Load a safetensors file", "load_file, cold cache"),
    ("save-many", "host", "Save many small tensors", "save_many; there, a file each"),
    ("direct-write", "host", "Write past the kernel", "a handle, durable"),
    ("direct-read", "host", "Read past the kernel", "a handle"),
    ("random-4k-1", "host", "Read single rows of a table", "4 KiB at random, one by one"),
    ("reader-4k-1", "reference", "Read single rows past the kernel", "4 KiB at random, one by one"),
    ("create", "host", "Create small files", "64 KiB each"),
    ("small-read", "host", "Read small files again", "open, read 4 KiB, close"),
    ("fsync-4k", "host", "Update a record durably", "overwrite 4 KiB, then fsync"),
    ("unlink", "host", "Delete small files", "unlink"),
)


def stylesheet():
    """The variables, in CSS."""
    light, dark = (" ".join(f"--{name}: {values[theme]};" for name, values in THEMES.items()) for theme in (0, 1))
    return (f":root {{ color-scheme: light dark; {light} }}\n"
            f"@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}")


def text(x, y, words, color="ink", size=SMALL, anchor="start", more=""):
    return (f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="var(--{color})"{more}>'
            f"{escape(words)}</text>")


def ratio_parts(rows, y):
    """Bars that begin at 1, on a logarithmic scale, of (value, title, explanation). Returns the elements and their
    lower end."""
    low, high = (end(*(row[0] for row in rows), limit) * margin for end, limit, margin in (
        (min, 0.5, 1 / 1.3), (max, 2, 1.3)))
    right, parts, top = WIDTH - 64, [], y

    def x(value):
        return MARGIN + math.log(value / low) / math.log(high / low) * (right - MARGIN)

    for value, title, explanation in rows:
        y += 2 * LINE - 2
        left, width = min(x(1), x(value)), max(abs(x(value) - x(1)), 1)
        parts += [text(MARGIN, y - LINE - 1, title), text(right + 60, y - LINE - 1, explanation, "soft", 10, "end"),
                  f'<rect x="{left:.1f}" y="{y - 9:.1f}" width="{width:.1f}" height="10" rx="2" '
                  f'fill="var(--{"ours" if value >= 1 else "host"})"/>',
                  text(right + 60, y, f"{value:.2f} ×" if value < 10 else f"{value:.0f} ×", anchor="end")]
        y += 5
    marks = [tick for tick in TICKS if low < tick < high]
    marks = [tick for tick in marks if len(marks) < 9 or f"{tick:e}"[0] == "1"]
    grid = [f'<polyline points="{x(mark):.1f},{top + 2:.1f} {x(mark):.1f},{y:.1f}" fill="none" '
            f'stroke="var(--{"soft" if mark == 1 else "grid"})" stroke-width="1"/>' for mark in marks]
    labels = [text(x(mark), y + LINE - 2, f"{mark:g}", "soft", 10, "middle") for mark in marks]
    return [*grid, *parts, *labels], y + LINE + 4


def picture(result):
    """The content of an SVG file: the ratios to the host's filesystem and to the raw disk, with a title, the disk, the
    date and the number of rounds."""
    checks = {row["id"]: {check["against"]: check["value"] for check in row["checks"]} for row in result["rows"]}
    disk, rounds, parts, y = result["facts"]["host's filesystem"], result["rounds"], [], 36
    for against, name in (("host", disk.split()[0]), ("reference", "the raw disk (libaio, O_DIRECT)")):
        rows = sorted(((checks[row][against], what, how) for row, to, what, how in RATIOS
                       if to == against and against in checks.get(row, {})), reverse=True)
        if rows:
            drawn, lower = ratio_parts(rows, y + 16)
            parts += [text(MARGIN, y + 12, f"times as fast as {name} (logarithmic)", "soft"), *drawn]
            y = lower
    if not parts:
        raise SystemExit("picture: the result has no row of the picture; measure more rows")
    height = y + 24
    facts = [disk, result["facts"]["time"][:10], f"medians of {rounds} rounds" if rounds > 1 else "one round"]
    parts = [f"<style>{stylesheet()}</style>",
             f'<rect width="{WIDTH}" height="{height:.0f}" rx="8" fill="var(--card)"/>',
             text(MARGIN, 24, "Speed of weightfs, compared on one disk", size=13, more=' font-weight="600"'), *parts,
             text(MARGIN, height - 10, ", ".join(facts), "soft", 10)]
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" '
            f'font-family="system-ui, Verdana, sans-serif">{"".join(parts)}</svg>\n')


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    target.write_text(picture(json.loads(source.read_text(encoding="utf-8"))), encoding="utf-8")
