# SPDX-License-Identifier: Apache-2.0
"""Draws the figure of each part."""

import statistics

import drawing
from drawing import COLORS, plt
from matplotlib.patches import Patch
from report import sections

WIDTH = 4.4   # inches: readable in a narrow window
DRIVERS = {"weightfs": "ours", "handle": "host", "sec2": "peer", "stdio": "third"}
BENCH_ROWS = ("read-1m", "write-1m", "direct-read", "direct-write", "torch-load", "torch-save", "safetensors-load",
              "safetensors-save", "numpy-load", "numpy-save")


def whiskers(values):
    """The distances of minimum and maximum from the median, as matplotlib wants them."""
    middle = statistics.median(values)
    return [middle - min(values)], [max(values) - middle]


def bars(groups, unit, legend=()):
    """A title for each row, and below it its bars: the values of each, whose median it is, and a color. groups: titles
    of the axes -> rows."""
    heights = [sum(len(bars) + 1.3 for _, bars in rows) for rows in groups.values()]
    figure, grid = plt.subplots(len(groups), figsize=(WIDTH, 0.17 * sum(heights) + 0.6 * len(groups) + 0.3),
                                height_ratios=heights, sharex=True, squeeze=False)
    for (axes,), (title, rows) in zip(grid, groups.items()):
        y = 0
        for name, entries in rows:
            axes.annotate(name, (0, y), (0, 1), textcoords="offset points", va="center")
            for values, color in entries:
                y -= 1
                middle = statistics.median(values)
                axes.barh(y, middle, 0.8, color=COLORS[color], xerr=whiskers(values) if len(set(values)) > 1 else None,
                          error_kw={"ecolor": COLORS["ink"], "elinewidth": 0.8, "capsize": 2})
                axes.annotate(f"{middle:.2f}", (max(values), y), (5, 0), textcoords="offset points", va="center",
                              fontsize=8)
            y -= 1.3
        axes.set(title=title, yticks=[], ylim=(y + 0.6, 0.7), xlabel=unit)
        axes.margins(x=0.12)
        axes.spines["left"].set_visible(False)
        axes.tick_params(labelbottom=True)
    handles = [Patch(color=COLORS[color], label=label) for color, label in legend]
    if handles:
        figure.legend(handles=handles, loc="outside upper left", ncols=2)
    return figure


def bench(data):
    rows = [row for name in BENCH_ROWS for row in data["rows"]
            if row["id"] == name and {"weightfs", "host"} <= row["ways"].keys()]

    def values(row, way):
        return [row["ways"][way][key] / 1e9 for key in ("min", "median", "max")]

    return bars({"": [(row["title"], [(values(row, "weightfs"), "ours"), (values(row, "host"), "host")])
                      for row in rows]}, "GB/s", (("ours", "weightfs"), ("host", "the host's filesystem")))


def hdf5(data):
    rows = [row for row in data["rows"] if "processes" in row]
    panels = [(kind, count) for count in sorted({row["processes"] for row in rows}) for kind in ("write", "read")]
    figure, grid = plt.subplots(len(panels), figsize=(WIDTH, 2.3 * len(panels) + 0.3), squeeze=False)
    for (axes,), (kind, count) in zip(grid, panels):
        chosen = [row for row in rows if (row["kind"], row["processes"]) == (kind, count)]
        sizes = [row["request"] for row in chosen]
        for driver, color in DRIVERS.items():
            ends = [sum(each, []) for each in zip(*(whiskers(row["rounds"][driver]) for row in chosen))]
            axes.errorbar(sizes, [row["median"][driver] for row in chosen], color=COLORS[color], label=driver,
                          yerr=ends, marker="o", markersize=4, capsize=2, elinewidth=0.8, linewidth=2 if driver == "weightfs" else 1.2)
        axes.set_xscale("log", base=2)
        axes.set_xticks(sizes, [sections.size_of(size) for size in sizes])
        axes.minorticks_off()
        axes.set(ylim=(0, None), xlabel="size of a request", ylabel="GB/s", title=f"{kind}, processes: {count}")
        axes.grid()
    figure.legend(*grid[0][0].get_legend_handles_labels(), loc="outside upper left", ncols=4)
    return figure


def checkpoint(data):
    groups = {"on the mount": [], "on the host's filesystem": []}
    for row in data["rows"]:
        color = "ours" if row["way"].startswith("weightfs") else "peer"
        groups["on the host's filesystem" if row["directory"] == data["base"] else "on the mount"].append(
            (row["way"], [(row["stall_s"], color), (row["durable_s"], f"{color}-light")]))
    return bars({title: rows for title, rows in groups.items() if rows}, "seconds",
                (("ours", "weightfs: the loop stands still"), ("ours-light", "until durable"),
                 ("peer", "others: the loop stands still"), ("peer-light", "until durable")))


def loads(data):
    return bars({"": [(row["loader"], [(sections.rates(data["size"] / 1e9, row["seconds"]),
                                        "ours" if row["loader"].startswith("weightfs") else "peer")])
                      for row in data["loads"]]}, "GB/s")


def offload(data, amount, unit):
    return bars({"": [(name, [(sections.rates(amount, seconds), "ours" if name == "offloaded" else "peer")])
                      for name, seconds in data["seconds"].items()]}, unit)


FIGURES = {"bench": bench, "hdf5": hdf5, "checkpoint": checkpoint, "loads": loads,
           "generate": lambda data: offload(data, data["tokens"], "tokens/s"),
           "train": lambda data: offload(data, 1, "steps/s")}


def svg(entry):
    """The <svg> element of a part that was measured."""
    with drawing.styled():
        return drawing.svg(FIGURES[entry["name"]](entry["data"]), entry["name"])
