# SPDX-License-Identifier: Apache-2.0
"""Turns the JSON of each part into tables. The HTML page and the Markdown page show the same ones."""

import dataclasses
import statistics

MIB = 1 << 20


@dataclasses.dataclass
class Table:
    caption: str
    head: list
    rows: list          # lists of strings, as long as the head
    notes: list = dataclasses.field(default_factory=list)
    missing: list = dataclasses.field(default_factory=list)   # what was not measured
    alarms: list = dataclasses.field(default_factory=list)   # what is wrong


def ratio(value):
    return "-" if value is None else f"{value:.2f}"


def spread(values, form="{:.3f}"):
    """The median with minimum and maximum."""
    low, middle, high = (form.format(value) for value in (min(values), statistics.median(values), max(values)))
    return f"{middle} ({low}–{high})" if len(values) > 1 else middle


def size_of(nbytes):
    """A size in binary units; the parts use whole ones."""
    return f"{nbytes / MIB:.0f} MiB" if nbytes < 1 << 30 else f"{nbytes / (1 << 30):g} GiB"


def rates(amount, seconds):
    return [amount / each for each in seconds]


def round_ratios(base, seconds):
    """How many times as fast as the base, by round: its measurements ran under similar load."""
    return [theirs / ours for theirs, ours in zip(base, seconds)]


def unmeasured(missing):
    """One line for each reason, with the names."""
    names = {}
    for name, reason in missing.items():
        names.setdefault(reason, []).append(name)
    return [f"NOT MEASURED: {', '.join(each)}: {reason}" for reason, each in names.items()]


def rate(row, way):
    if way not in row["ways"]:
        return "-"
    median = row["ways"][way]["median"]
    return f"{median / 1e9:.2f}" if row["unit"] == "GB/s" else f"{median:,.0f}"


def bench(data):
    found = {}
    for row in (row for row in data["rows"] if row["ways"]):
        to = {check["against"]: check["value"] for check in row["checks"]}
        found.setdefault(row["unit"], []).append([
            row["title"], *(rate(row, way) for way in ("weightfs", "reference", "host")),
            ratio(to.pop("reference", None)), ratio(to.pop("host", None)),
            ", ".join(f"{against} {ratio(value)}" for against, value in to.items())])
    reasons = {f"{row['id']} ({way})": reason for row in data["rows"] for way, reason in row["not_measured"].items()}
    note = (f"The large file has {size_of(data['size_bytes'])}; medians of {data['rounds']} rounds, in which the "
            f"references varied by {data['noise']['widest']:.0%}." if data["rounds"] > 1 else
            f"The large file has {size_of(data['size_bytes'])}. One round (--quick) shows that the benchmark works; "
            f"for results use --size full on an idle machine.")
    head = ["", "weightfs", "reference", "host", "to reference", "to host", "to others"]
    tables = [Table(f"{unit}; the reference is the raw disk", head, rows) for unit, rows in found.items()]
    return [*tables, Table("", [], [], [note], unmeasured(reasons))]


def hdf5(data):
    drivers = ("sec2", "stdio", "weightfs", "handle")

    def line(row, *names):
        return [row["kind"], *names, *(ratio(row["median"].get(driver)) for driver in drivers),
                *(ratio(row["weightfs_over"].get(driver)) for driver in ("sec2", "handle"))]

    head = [*drivers, "over sec2", "over the handle"]
    requests = [line(row, size_of(row["request"]), str(row["processes"])) for row in data["rows"]
                if "processes" in row]
    settings = [line(row, str(row["num_threads"]), size_of(row["block_size"])) for row in data["rows"]
                if "num_threads" in row]
    small = [[row["kind"], row["label"], *(f"{1 / row['median'][driver]:.2f}" for driver in drivers[:3]),
              *(ratio(row["weightfs_over"][driver]) for driver in drivers[:2])] for row in data["rows"]
             if row["unit"] == "1/s"]
    rounds = len(next(iter(data["rows"][0]["rounds"].values())))
    note = (f"HDF5 {data['hdf5']}, h5py {data['h5py']}, {size_of(data['total'])} per file, medians of {rounds} "
            f"alternating rounds. The last columns are medians of the ratios of each round.")
    found = [Table("GB/s over the size of the requests", ["", "request", "processes", *head], requests, [note]),
             Table("GB/s over the settings of the driver", ["", "threads", "block", *head], settings)]
    return found + [Table("Seconds of small requests", ["", "requests", *drivers[:3], "over sec2", "over stdio"],
                          small)] * bool(small)


def checkpoint(data):
    rows = [[row["way"], "host" if row["directory"] == data["base"] else "mount", spread(row["stall_s"]),
             spread(row["durable_s"]), ratio(row["stall_times_faster"]), ratio(row["durable_times_faster"])]
            for row in data["rows"]]
    note = (f"{size_of(data['size'])}. Median (minimum–maximum) of {len(data['rows'][0]['stall_s'])} alternating "
            f"rounds. The ratios say how many times as fast as torch.save with fsync on the host's filesystem.")
    return [Table("Seconds", ["", "directory", "loop stands still", "until durable", "ratio: stands still",
                              "ratio: durable"], rows, [note])]


def loads(data):
    rows = [[row["loader"], spread(row["seconds"]), ratio(data["size"] / 1e9 / row["median_s"]), ratio(row["ratio"])]
            for row in data["loads"]]
    return [Table("Loads", ["", "seconds", "GB/s", f"over {data['best_peer'] or 'no other loader'}"], rows,
                  [f"{size_of(data['size'])}. Median (minimum–maximum) of {data['rounds']} alternating rounds; the "
                   f"last column is the median of the ratios to the fastest other loader."],
                  unmeasured(data["not_measured"]))]


def offload(data, amount, unit, note, equal):
    """equal: keys of data -> what is equal to the run in memory if the key is true."""
    base = data["seconds"]["in memory"]
    rows = [[name, spread(rates(amount, seconds), "{:.2f}"),
             ratio(statistics.median(round_ratios(base, seconds)))] for name, seconds in data["seconds"].items()]
    same = [text for key, text in equal.items() if data[key]]
    note += f" Equal to the run in memory: {', '.join(same)}." if same else ""
    return [Table(f"Speed in {unit}", ["", unit, "ratio to in memory"], rows,
                  [note, "Median (minimum–maximum) of alternating rounds; the ratio is a median over the rounds."],
                  alarms=[f"WRONG RESULT: these differ from the run in memory: {text}" for key, text in equal.items()
                          if not data[key]])]


def generate(data):
    note = (f"{data['weights_bytes'] / 1e6:.0f} MB of weights in {data['memory']} of memory; "
            f"{data['read_bytes_per_token'] / 1e6:.0f} MB are read per token. The offloaded run waited "
            f"{statistics.median(data['share_waited']):.0%} of its time for I/O, and had "
            f"{statistics.median(data['over_slower']):.2f} of the speed of the slower of compute alone and device "
            f"alone.")
    return offload(data, data["tokens"], "tokens/s", note, {"same_tokens": "all tokens"})


def train(data):
    note = (f"{data['state_bytes'] / 1e6:.0f} MB of weights, gradients and states in {data['memory']} of memory; per "
            f"step {data['read_bytes_per_step'] / 1e6:.0f} MB are read and {data['written_bytes_per_step'] / 1e6:.0f} "
            f"MB written. The offloaded run waited {data['share_waited']:.0%} of its time for I/O. The killed run "
            f"continued from {data['complete_steps']} complete steps.")
    return offload(data, 1, "steps/s", note, {
        "same_losses": "all losses", "same_weights_after_kill": "the weights of the run that was killed and resumed"})


# Summaries: rows of what is measured, weightfs, with what it is compared, that, and the ratio.

def bench_summary(data):
    for row in data["rows"]:
        value = next((check["value"] for check in row["checks"] if check["against"] == "host"), None)
        if row["id"] in ("read-1m", "write-1m", "torch-load", "torch-save") and value is not None:
            yield [f"{row['title']}, {row['unit']}", rate(row, "weightfs"), "the host's filesystem", rate(row, "host"),
                   ratio(value)]


def hdf5_summary(data):
    rows = [row for row in data["rows"] if row.get("processes") == 1]
    for row in rows[-2:]:
        yield [f"{row['kind']} in requests of {size_of(row['request'])}, GB/s", ratio(row["median"]["weightfs"]),
               "HDF5's sec2", ratio(row["median"]["sec2"]), ratio(row["weightfs_over"]["sec2"])]


def checkpoint_summary(data):
    base = next(row for row in data["rows"] if row["stall_times_faster"] == 1 and row["directory"] == data["base"])
    ours = [row for row in data["rows"] if row["way"].startswith("weightfs") and row["directory"] != data["base"]]
    for key, what in (("stall", "the loop stands still"), ("durable", "until durable")):
        best = max(ours, key=lambda row: row[f"{key}_times_faster"])
        yield [f"{what}, {best['way']}, seconds", f"{statistics.median(best[f'{key}_s']):.3f}",
               f"{base['way']}, on the host", f"{statistics.median(base[f'{key}_s']):.3f}",
               ratio(best[f"{key}_times_faster"])]


def loads_summary(data):
    rows = {row["loader"]: row for row in data["loads"]}
    best = max((row for name, row in rows.items() if name.startswith("weightfs")), key=lambda row: row["ratio"] or 0)
    if data["best_peer"]:
        yield [f"{best['loader']}, GB/s", *(ratio(data["size"] / 1e9 / best["median_s"]), data["best_peer"],
               ratio(data["size"] / 1e9 / rows[data["best_peer"]]["median_s"])), ratio(best["ratio"])]


def offload_summary(data, amount, unit, peer):
    medians = [statistics.median(rates(amount, data["seconds"][name])) for name in ("offloaded", peer)]
    yield [f"offloaded, {unit}", ratio(medians[0]), peer, ratio(medians[1]),
           ratio(statistics.median(round_ratios(data["seconds"][peer], data["seconds"]["offloaded"])))]


SUMMARIES = {"bench": bench_summary, "hdf5": hdf5_summary, "checkpoint": checkpoint_summary, "loads": loads_summary,
             "generate": lambda data: offload_summary(data, data["tokens"], "tokens/s", "mapped"),
             "train": lambda data: offload_summary(data, 1, "steps/s", "in memory")}


def summary(report):
    """The most important figures of each part that was measured."""
    rows = [[entry["title"], *row] for entry in report["parts"] if entry["state"] == "done"
            for row in SUMMARIES[entry["name"]](entry["data"])]
    return Table("", ["", "measured", "weightfs", "compared with", "its figure", "times as fast"], rows,
                 ["The ratios are medians over the rounds."] * bool(rows))


TABLES = {"bench": bench, "hdf5": hdf5, "checkpoint": checkpoint, "loads": loads, "generate": generate, "train": train}


def tables(entry):
    """The tables of a part that was measured."""
    return TABLES[entry["name"]](entry["data"])
