# SPDX-License-Identifier: Apache-2.0
"""Draws the figure of each part as SVG. Its colors are variables of the page's style, for light and dark pages."""

import io
import re
import statistics

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402  (after the choice of what it draws with)
from matplotlib.patches import Patch  # noqa: E402

from report import sections  # noqa: E402

# Variable of the page's style -> its light value, which stands for it in what matplotlib draws.
COLORS = {"ink": "#1b1e25", "soft": "#5b6170", "grid": "#e2e4e9", "ours": "#2166d2", "ours-light": "#a5c6f5",
          "peer": "#7d8595", "peer-light": "#ccd1d9", "host": "#d97a21", "third": "#3b9c7d"}
DRIVERS = {"weightfs": "ours", "handle": "host", "sec2": "peer", "stdio": "third"}
BENCH_ROWS = ("read-1m", "write-1m", "direct-read", "direct-write", "torch-load", "torch-save", "safetensors-load",
              "safetensors-save", "numpy-load", "numpy-save")
STYLE = {"font.size": 9, "svg.fonttype": "none", "axes.spines.top": False, "axes.spines.right": False,
         "text.color": COLORS["ink"], "axes.labelcolor": COLORS["soft"], "axes.edgecolor": COLORS["soft"],
         "axes.titlesize": 10, "xtick.color": COLORS["soft"], "ytick.color": COLORS["ink"], "axes.axisbelow": True,
         "grid.color": COLORS["grid"], "figure.facecolor": "none", "axes.facecolor": "none", "legend.frameon": False}


def bars(axes, names, medians, colors, ranges=None, form="{:.2f}", height=0.7, offset=0.0):
    """Horizontal bars, the first at the top, with their values at the right edge."""
    at = [offset - number for number in range(len(names))]
    errors = None if ranges is None else list(zip(*((middle - low, high - middle)
                                                    for middle, (low, high) in zip(medians, ranges))))
    axes.barh(at, medians, height, color=[COLORS[color] for color in colors], xerr=errors,
              error_kw={"ecolor": COLORS["ink"], "elinewidth": 0.8})
    ends = [high for _, high in ranges] if ranges else medians
    for y, end, value in zip(at, ends, medians):
        axes.annotate(form.format(value), (end, y), (4, 0), textcoords="offset points", va="center", fontsize=8)
    axes.set_yticks([-number for number in range(len(names))], names)
    axes.tick_params(axis="y", length=0)
    axes.grid(True, axis="x")
    axes.margins(x=0.12)


def bench(data):
    rows = [row for name in BENCH_ROWS for row in data["rows"]
            if row["id"] == name and {"weightfs", "host"} <= row["ways"].keys()]
    figure, axes = plt.subplots(figsize=(8, 0.55 * len(rows) + 1))
    for way, color, offset in (("weightfs", "ours", 0.2), ("host", "host", -0.2)):
        bars(axes, [row["title"] for row in rows], [row["ways"][way]["median"] / 1e9 for row in rows],
             [color] * len(rows), height=0.38, offset=offset)
    axes.set_xlabel("GB/s")
    axes.legend(handles=[Patch(color=COLORS["ours"], label="weightfs"),
                         Patch(color=COLORS["host"], label="the host's filesystem")], fontsize=8,
                loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
    return figure


def hdf5(data):
    rows = [row for row in data["rows"] if "processes" in row]
    counts = sorted({row["processes"] for row in rows})
    figure, grid = plt.subplots(len(counts), 2, figsize=(8, 3 * len(counts)), sharey="row", squeeze=False)
    for line, count in zip(grid, counts):
        for axes, kind in zip(line, ("write", "read")):
            chosen = [row for row in rows if (row["kind"], row["processes"]) == (kind, count)]
            sizes = [row["request"] for row in chosen]
            for driver, color in DRIVERS.items():
                axes.plot(sizes, [row["median"][driver] for row in chosen], marker="o", markersize=4,
                          color=COLORS[color], label=driver, linewidth=2 if driver == "weightfs" else 1.2)
            axes.set_xscale("log", base=2)
            axes.set_xticks(sizes, [sections.size_of(size) for size in sizes])
            axes.minorticks_off()
            axes.set(ylim=(0, None), xlabel="bytes per request",
                     title=kind if len(counts) == 1 else f"{kind}, processes: {count}")
            axes.tick_params(axis="y", labelleft=True)
            axes.grid()
        line[0].set_ylabel("GB/s")
    figure.legend(*grid[0][0].get_legend_handles_labels(), loc="lower center", bbox_to_anchor=(0.5, 1), ncols=4)
    return figure


def checkpoint(data):
    groups = {"on the mount": [row for row in data["rows"] if row["directory"] != data["base"]],
              "on the host's filesystem": [row for row in data["rows"] if row["directory"] == data["base"]]}
    figure, pair = plt.subplots(1, 2, figsize=(9, 3.2), sharex=True, sharey=True)
    for axes, (title, rows) in zip(pair, groups.items()):
        names = [row["way"] for row in rows]
        colors = ["ours" if name.startswith("weightfs") else "peer" for name in names]
        bars(axes, names, [statistics.median(row["durable_s"]) for row in rows],
             [f"{color}-light" for color in colors])
        axes.barh([-number for number in range(len(rows))], [statistics.median(row["stall_s"]) for row in rows], 0.7,
                  color=[COLORS[color] for color in colors])
        axes.set(title=title, xlabel="seconds: dark, the loop stands still; light, until durable")
    return figure


def loads(data):
    rows = data["loads"]
    figure, axes = plt.subplots(figsize=(8, 0.4 * len(rows) + 0.8))
    speeds = [sections.rates(data["size"] / (1 << 30), row["seconds"]) for row in rows]
    bars(axes, [row["loader"] for row in rows], [statistics.median(each) for each in speeds],
         ["ours" if row["loader"].startswith("weightfs") else "peer" for row in rows],
         [(min(each), max(each)) for each in speeds])
    axes.set_xlabel("GiB/s, with minimum and maximum")
    return figure


def offload(data, amount, unit):
    speeds = {name: sections.rates(amount, seconds) for name, seconds in data["seconds"].items()}
    figure, axes = plt.subplots(figsize=(8, 0.4 * len(speeds) + 0.8))
    bars(axes, list(speeds), [statistics.median(each) for each in speeds.values()],
         ["ours" if name == "offloaded" else "peer" for name in speeds],
         [(min(each), max(each)) for each in speeds.values()])
    axes.set_xlabel(f"{unit}, with minimum and maximum")
    return figure


FIGURES = {"bench": bench, "hdf5": hdf5, "checkpoint": checkpoint, "loads": loads,
           "generate": lambda data: offload(data, data["tokens"], "tokens/s"),
           "train": lambda data: offload(data, 1, "steps/s")}


def drawn(entry):
    """The figure of a part that was measured."""
    with plt.rc_context(STYLE | {"svg.hashsalt": entry["name"]}):
        figure = FIGURES[entry["name"]](entry["data"])
        figure.tight_layout()
        return figure


def svg(entry):
    """An <svg> element for an HTML page. Its ids begin with the name of the part, so that they are unique there."""
    stream, name = io.StringIO(), entry["name"]
    figure = drawn(entry)
    with plt.rc_context(STYLE | {"svg.hashsalt": name}):
        figure.savefig(stream, format="svg", bbox_inches="tight", metadata={"Date": None, "Creator": None})
    plt.close(figure)
    text = stream.getvalue()
    text = text[text.index("<svg"):]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    for variable, color in COLORS.items():
        text = text.replace(color, f"var(--{variable})")
    return re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", text)
