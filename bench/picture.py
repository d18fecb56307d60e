#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws ratios of a result of `weightfs bench` as horizontal bars. scripts/picture calls it."""

import json
import sys

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot   # noqa: E402

# (row, what it is compared with, label), in the order of the picture. Rows that were not measured are left out.
BARS = (
    ("write-1m", "host", "write + fsync, 1 MiB"),
    ("read-1m", "host", "read, cold, 1 MiB"),
    ("torch-save", "host", "torch.save + fsync"),
    ("torch-load", "host", "torch.load, cold"),
    ("safetensors-load", "host", "safetensors load_file, cold"),
    ("save-many", "host", "1,000 small tensors, durable (save_many)"),
    ("direct-write", "host", "a handle, write, durable"),
    ("direct-read", "host", "a handle, read"),
    ("random-4k-1", "host", "random 4 KiB reads"),
    ("reader-4k-1", "reference", "random 4 KiB reads by a reader (to the raw disk)"),
    ("create", "host", "create 64 KiB files"),
    ("small-read", "host", "read small files again"),
    ("fsync-4k", "host", "4 KiB write + fsync"),
    ("unlink", "host", "delete files"),
)
GOOD, FAIR, SLOW = "#1b7837", "#5aae61", "#9970ab"


def ratios(result):
    rows = {row["id"]: row for row in result["rows"]}
    found = []
    for row, against, label in BARS:
        ways = rows.get(row, {}).get("ways", {})
        if "weightfs" in ways and against in ways:
            found.append((label, ways["weightfs"]["median"] / ways[against]["median"]))
    return found


def draw(result, out):
    found = ratios(result)
    if not found:
        raise SystemExit("picture: the result has no row of the picture; measure more rows")
    found.sort(key=lambda bar: bar[1])
    figure, axes = pyplot.subplots(figsize=(9, 0.36 * len(found) + 1.3))
    values = [value for _, value in found]
    colors = [GOOD if value >= 1 else FAIR if value >= 0.5 else SLOW for value in values]
    axes.barh([label for label, _ in found], values, color=colors, height=0.7)
    axes.axvline(1, color="black", linewidth=1)
    axes.set_xscale("log")
    axes.set_xlim(min(0.05, min(values) / 1.3), max(values) * 1.8)
    axes.set_xticks([0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50])
    axes.xaxis.set_major_formatter("{x:g} ×")
    axes.minorticks_off()
    for at, value in enumerate(values):
        axes.text(value * 1.05, at, f"{value:.2g} ×" if value < 10 else f"{value:.0f} ×", va="center", fontsize=9)
    facts = result["facts"]
    host = facts.get("host's filesystem", "the host's filesystem")
    axes.set_title(f"weightfs: speed relative to {host.split(' ')[0]} on the same disk (higher is better)", fontsize=11, loc="left")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(left=False)
    figure.tight_layout()
    matplotlib.rcParams["svg.hashsalt"] = "weightfs"
    figure.savefig(out, metadata={"Date": None})


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as stream:
        draw(json.load(stream), sys.argv[2])
