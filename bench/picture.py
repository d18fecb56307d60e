# SPDX-License-Identifier: Apache-2.0
"""Draws a result of `weightfs bench --json`: its curves, or if it has none, its ratios. scripts/picture calls it."""

import json
import sys
from pathlib import Path

from . import drawing

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
CURVES = ("streams", "large", "aging", "files-create", "files-memory", "files-mount")   # in the order of the picture
MARGIN = 14


def facts(result):
    """Disk, date and number of rounds."""
    rounds = result.get("rounds", 0)
    words = [result["facts"]["host's filesystem"], result["facts"]["time"][:10]]
    return ", ".join(words + [f"medians of {rounds} rounds" if rounds > 1 else "one round"] * (not result["curves"]))


def framed(title, result, parts, height, width):
    return drawing.svg_file([
        drawing.text(MARGIN, 24, title, size=13, more=' font-weight="600"'), *parts,
        drawing.text(MARGIN, height - 10, facts(result), "soft", 10)], height, width)


def ratios(result):
    checks = {row["id"]: {check["against"]: check["value"] for check in row["checks"]} for row in result["rows"]}
    host = result["facts"]["host's filesystem"].split()[0]
    parts, y = [], 36
    for against, name in (("host", host), ("reference", "the raw disk (libaio, O_DIRECT)")):
        rows = sorted(((checks[row][against], what, how) for row, to, what, how in BARS
                       if to == against and against in checks.get(row, {})), reverse=True)
        if rows:
            parts.append(drawing.text(MARGIN, y + 12, f"times as fast as {name} (logarithmic)", "soft"))
            drawn, y = drawing.ratio_parts([(what, how, value, None) for value, what, how in rows], y + 16, MARGIN)
            parts += drawn
    if not parts:
        raise SystemExit("picture: the result has no row of the picture; measure more rows")
    return framed("Speed of weightfs, compared on one disk", result, parts, y + 24, drawing.WIDTH + MARGIN)


def scaling(result):
    curves = {curve["id"]: curve for curve in result["curves"]}
    if missing := set(CURVES) - curves.keys():
        raise SystemExit(f"picture: the result has no curve {', '.join(sorted(missing))}; run weightfs bench with "
                         f"--scaling and --large-size")
    width, height, top = 300, 210, 70
    parts = [f'<g transform="translate({MARGIN} 32)">', *drawing.curve_legend(list(curves.values()), 12), "</g>"]
    for number, name in enumerate(CURVES):
        x, y = MARGIN + number % 2 * (width + 10), top + number // 2 * height
        parts += drawing.curve_parts(curves[name], x, y, width, height - 10)
    return framed("How weightfs scales", result, parts, top + 3 * height + 20, 2 * width + 2 * MARGIN + 10)


def picture(result):
    """The SVG file of a result."""
    return (scaling if result["curves"] else ratios)(result)


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    target.write_text(picture(json.loads(source.read_text(encoding="utf-8"))), encoding="utf-8")
