#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws a result of `weightfs bench --json`: its curves, or if it has none, its ratios. scripts/picture calls it."""

import json
import sys
from pathlib import Path

import drawing
from drawing import COLORS, plt
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

# (row, what it is compared with, what it is to a user, how it is measured). Rows that were not measured are left out.
BARS = (
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
TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)
# The curves in the order of the picture, and whether their x values are powers of two.
CURVES = {"streams": True, "large": True, "aging": False, "files-create": False, "files-memory": False,
          "files-mount": False}


def frame(figure, title, result, handles):
    """The title and a legend above the axes; below them disk, date and number of rounds."""
    rounds = result.get("rounds", 0)
    facts = [result["facts"]["host's filesystem"], result["facts"]["time"][:10]]
    facts += [f"medians of {rounds} rounds" if rounds > 1 else "one round"] * (not result["curves"])
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.08)
    figure.supxlabel(", ".join(facts), x=0.025, ha="left", fontsize=8, color=COLORS["soft"])
    figure.legend(handles=handles, loc="outside upper left", ncols=4, title=title, alignment="left",
                  title_fontproperties={"weight": "bold", "size": 11}, columnspacing=1.2)


def ratios(result):
    """Bars on a logarithmic scale that begin at 1 and end at the ratio."""
    checks = {row["id"]: {check["against"]: check["value"] for check in row["checks"]} for row in result["rows"]}
    host = result["facts"]["host's filesystem"].split()[0]
    y, values = 0, [1]
    figure, axes = plt.subplots(figsize=(5.2, 1))
    left = {"xytext": (-150, 0), "textcoords": "offset points", "annotation_clip": False,
            "xycoords": ("axes fraction", "data"), "va": "center"}
    for against, name in (("host", host), ("reference", "the raw disk (libaio, O_DIRECT)")):
        rows = sorted(((checks[row][against], what, how) for row, to, what, how in BARS
                       if to == against and against in checks.get(row, {})), reverse=True)
        if not rows:
            continue
        axes.annotate(f"compared with {name}", (0, y), weight="bold", **left)
        axes.vlines(1, y - len(rows) - 0.45, y - 0.55, color=COLORS["soft"], linewidth=1, zorder=3)
        for value, what, how in rows:
            y -= 1
            values.append(value)
            axes.barh(y, value - 1, 0.5, left=1, color=COLORS["ours" if value >= 1 else "host"])
            axes.annotate(f"{value:.2f} ×" if value < 10 else f"{value:.0f} ×", (value, y),
                          (4 if value >= 1 else -4, 0), textcoords="offset points", va="center",
                          ha="left" if value >= 1 else "right")
            for text, at, color in ((what, y + 0.2, "ink"), (how, y - 0.22, "soft")):
                axes.annotate(text, (0, at), color=COLORS[color], fontsize=8.5 if color == "ink" else 7.5, **left)
        y -= 1
    if len(values) == 1:
        raise SystemExit("picture: the result has no row of the picture; measure more rows")
    low, high = min(values) / 3, max(values) * 3
    axes.set(xscale="log", xlim=(low, high), ylim=(y + 0.4, 0.6), yticks=[])
    axes.set_xticks([tick for tick in TICKS if low < tick < high])
    axes.xaxis.set_major_formatter("{x:g}")
    axes.minorticks_off()
    axes.set_xlabel("times as fast (logarithmic)")
    axes.spines["left"].set_visible(False)
    figure.set_figheight(1.3 + 0.33 * -y)
    frame(figure, "Speed of weightfs, compared on one disk", result,
            [Patch(color=COLORS["ours"], label="weightfs is faster"),
           Patch(color=COLORS["host"], label="weightfs is slower")])
    return figure


def style_of(name):
    """weightfs and the host differ by color, reading and writing by the line."""
    way, _, what = name.partition(", ")
    return {"color": COLORS["peer" if way == "host" else "ours"], "linestyle": "--" if what == "write" else "-",
            "marker": "s" if what == "write" else "o", "markersize": 4}


def scaling(result):
    curves = {curve["id"]: curve for curve in result["curves"]}
    missing = CURVES.keys() - curves.keys()
    if missing:
        raise SystemExit(f"picture: the result has no curve {', '.join(sorted(missing))}; run weightfs bench with "
                         f"--scaling and --large-size")
    figure, grid = plt.subplots(3, 2, figsize=(5.8, 7.4))
    lines = {}
    for axes, (name, powers) in zip(grid.flat, CURVES.items()):
        curve = curves[name]
        xs = [point["x"] for point in curve["points"]]
        thousands = xs[-1] >= 10_000
        for line in curve["points"][0]["values"]:
            ys = [point["values"][line] for point in curve["points"]]
            axes.plot([x / 1000 for x in xs] if thousands else xs, ys, **style_of(line))
            if ", " in line:
                lines[line] = Line2D([], [], label=line, **style_of(line))
        if powers:
            axes.set_xscale("log", base=2)
            axes.set_xticks(xs, [f"{x:g}" for x in xs])
            axes.minorticks_off()
        most = max(value for point in curve["points"] for value in point["values"].values())
        axes.set(ylim=(0, 1.1 * most), title=curve["title"], ylabel=curve["y_title"],
                 xlabel="thousand " + curve["x_title"] if thousands else curve["x_title"])
        axes.grid(True)
    frame(figure, "How weightfs scales", result, list(lines.values()))
    return figure


def picture(result, name):
    """The SVG file of a result."""
    with drawing.styled():
        return drawing.svg_file((scaling if result["curves"] else ratios)(result), name)


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    target.write_text(picture(json.loads(source.read_text(encoding="utf-8")), target.stem), encoding="utf-8")
