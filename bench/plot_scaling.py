#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws docs/scaling.svg from the result of a run: weightfs bench DIR --scaling ... --json scale.json

Usage: bench/plot_scaling.py scale.json docs/scaling.svg    (needs matplotlib: pip install matplotlib)"""

import json
import sys

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402  (after the choice of what it draws with)

COLORS = {"weightfs, read": "#0b7285", "weightfs, write": "#e8590c", "host, read": "#99c9d0", "host, write": "#f7b787",
          "weightfs": "#0b7285"}
# The curves in the order of the picture, and whether their x values are powers of two.
CURVES = {"streams": True, "large": True, "aging": False, "files-create": False, "files-memory": False,
          "files-mount": False}


def draw(axes, curve, powers):
    xs = [point["x"] for point in curve["points"]]
    thousands = xs[-1] >= 10_000
    for name in curve["points"][0]["values"]:
        axes.plot([x / 1000 for x in xs] if thousands else xs, [point["values"][name] for point in curve["points"]],
                  marker="o", markersize=4, label=name, color=COLORS.get(name))
    if powers:
        axes.set_xscale("log", base=2)
        axes.set_xticks(xs, [f"{x:g}" for x in xs])
        axes.minorticks_off()
    axes.set(ylim=(0, None), title=curve["title"], ylabel=curve["unit"],
             xlabel="thousand " + curve["x_title"] if thousands else curve["x_title"])
    axes.grid(alpha=0.25)
    if len(curve["points"][0]["values"]) > 1:
        axes.legend(frameon=False, fontsize=8)


def main(source, target):
    with open(source) as stream:
        curves = {curve["id"]: curve for curve in json.load(stream)["curves"]}
    missing = CURVES.keys() - curves.keys()
    if missing:
        sys.exit(f"{source}: has no curve {', '.join(sorted(missing))}: run weightfs bench with --scaling and --large-size")
    plt.rcParams |= {"font.size": 9, "svg.fonttype": "none", "svg.hashsalt": "weightfs", "axes.spines.top": False,
                     "axes.spines.right": False}
    figure, axes = plt.subplots(2, 3, figsize=(11, 6))
    for place, (name, powers) in zip(axes.flat, CURVES.items()):
        draw(place, curves[name], powers)
    figure.tight_layout()
    figure.savefig(target, metadata={"Date": None})


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
