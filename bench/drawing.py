# SPDX-License-Identifier: Apache-2.0
"""Figures as SVG, whose colors follow the light or dark scheme of the page. As a program, which scripts/picture calls:
draws a result of `weightfs bench --json`, its curves, or if it has none, the ratios of the rows in RATIOS."""

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
CURVE_WIDTH, CURVE_HEIGHT = 300, 210
TICKS = [power * step for power in (10.0 ** exponent for exponent in range(-3, 13)) for step in (1, 2, 5)]
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


def digits(value):
    return f"{value / 1e6:g}M" if value >= 1e6 else f"{value / 1e3:g}k" if value >= 1e4 else f"{value:.3g}"


def text(x, y, words, color="ink", size=SMALL, anchor="start", more=""):
    return (f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="var(--{color})"{more}>'
            f"{escape(words)}</text>")


def line(points, color="grid", width=1, more=""):
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="var(--{color})" stroke-width="{width}"{more}/>'


def svg(parts, height, width):
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height:.0f}" width="{width}" '
            f'font-family="system-ui, Verdana, sans-serif">{"".join(parts)}</svg>')


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
    grid = [line([(x(mark), top + 2), (x(mark), y)], "soft" if mark == 1 else "grid") for mark in marks]
    labels = [text(x(mark), y + LINE - 2, f"{mark:g}", "soft", 10, "middle") for mark in marks]
    return [*grid, *parts, *labels], y + LINE + 4


def curve_parts(curve, x0, y0):
    """A curve with its axes: x is logarithmic where the values grow by factors."""
    left, right, top, bottom = x0 + 44, x0 + CURVE_WIDTH - 16, y0 + 22, y0 + CURVE_HEIGHT - 48
    xs, names = [point["x"] for point in curve["points"]], list(curve["points"][0]["values"])
    most = max(value for point in curve["points"] for value in point["values"].values()) * 1.1 or 1
    logarithmic = len(xs) > 2 and xs[0] > 0 and xs[2] / xs[1] >= 1.9 and xs[1] / xs[0] >= 1.9

    def x(value):
        part = 0.5 if xs[-1] == xs[0] else (math.log(value / xs[0]) / math.log(xs[-1] / xs[0]) if logarithmic
                                            else (value - xs[0]) / (xs[-1] - xs[0]))
        return left + part * (right - left)

    def y(value):
        return bottom - value / most * (bottom - top)

    parts = [text(x0, y0 + 12, curve["title"], size=12, more=' font-weight="600"')]
    step = next(tick for tick in TICKS if tick >= most / 4)
    for tick in (step * number for number in range(int(most / step + 1e-9) + 1)):
        parts += [line([(left, y(tick)), (right, y(tick))]),
                  text(left - 6, y(tick) + 4, digits(tick), "soft", 10, "end")]
    parts += [text(x(value), bottom + 14, digits(value), "soft", 10, "middle") for value in xs]
    parts += [text((left + right) / 2, bottom + 28, f"{curve['x_title']}; {curve['y_title']}", "soft", 9.5, "middle")]
    for name in names:
        points = [(x(point["x"]), y(point["values"][name])) for point in curve["points"]]
        parts.append(line(points, *style_of(name)))
        parts += [f'<circle cx="{across:.1f}" cy="{down:.1f}" r="3" fill="var(--{style_of(name)[0]})"><title>'
                  f'{escape(name)}: {digits(point["values"][name])}</title></circle>'
                  for (across, down), point in zip(points, curve["points"])]
    return parts


def style_of(name):
    """Color, width and dashes of "weightfs, read": reads and writes of a way differ by the dashes."""
    return ("ours" if name.startswith("weightfs") else "host", 2, ' stroke-dasharray="4 3"' * ("write" in name))


def curves(found, top=0):
    """Returns the elements of all curves of a result, in two columns, and their lower end."""
    names = dict.fromkeys(name for curve in found for name in curve["points"][0]["values"] if ", " in name)
    parts, x, top = [], MARGIN, top + 12
    for name in names:
        parts += [line([(x, top - 4), (x + 18, top - 4)], *style_of(name)), text(x + 23, top, name, "soft")]
        x += 34 + 7 * len(name)
    for number, one in enumerate(found):
        parts += curve_parts(one, MARGIN + number % 2 * (CURVE_WIDTH + 10),
                             top + 2 * LINE + number // 2 * CURVE_HEIGHT)
    return parts, top + 2 * LINE + (len(found) + 1) // 2 * CURVE_HEIGHT, 2 * (CURVE_WIDTH + MARGIN) + 10


def ratios(result, y):
    """The elements of the ratios to the host's filesystem and to the raw disk, and their lower end."""
    checks = {row["id"]: {check["against"]: check["value"] for check in row["checks"]} for row in result["rows"]}
    host, parts = result["facts"]["host's filesystem"].split()[0], []
    for against, name in (("host", host), ("reference", "the raw disk (libaio, O_DIRECT)")):
        rows = sorted(((checks[row][against], what, how) for row, to, what, how in RATIOS
                       if to == against and against in checks.get(row, {})), reverse=True)
        if rows:
            drawn, lower = ratio_parts(rows, y + 16)
            parts += [text(MARGIN, y + 12, f"times as fast as {name} (logarithmic)", "soft"), *drawn]
            y = lower
    return parts, y, WIDTH


def picture(result):
    """The content of an SVG file with a title, the disk, the date and the number of rounds."""
    found, rounds = result["curves"], result.get("rounds", 0)
    title = "How weightfs scales" if found else "Speed of weightfs, compared on one disk"
    parts, lower, width = curves(found, 32) if found else ratios(result, 36)
    if not parts:
        raise SystemExit("picture: the result has no row of the picture; measure more rows")
    facts = [result["facts"]["host's filesystem"], result["facts"]["time"][:10]]
    facts += [f"medians of {rounds} rounds" if rounds > 1 else "one round"] * (not found)
    height = lower + 24
    return svg([f"<style>{stylesheet()}</style>",
                f'<rect width="{width}" height="{height:.0f}" rx="8" fill="var(--card)"/>',
                text(MARGIN, 24, title, size=13, more=' font-weight="600"'), *parts,
                text(MARGIN, height - 10, ", ".join(facts), "soft", 10)], height, width) + "\n"


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    target.write_text(picture(json.loads(source.read_text(encoding="utf-8"))), encoding="utf-8")
