# SPDX-License-Identifier: Apache-2.0
"""Turns samples into rows: medians, ratios, and their comparison with the targets. The rows are those of --json."""

import random
import statistics

WAYS = ["weightfs",    # through the mount
        "reference",   # libaio, O_DIRECT, huge pages, on the host's filesystem; in memory: read() and write()
        "host",        # the host's filesystem as programs use it, buffered; handles use O_DIRECT
        "fio",         # fio on the reference's file, with fio's own (4 KiB) pages
        "noverify",    # a second mount that does not verify checksums
        "memory"]      # a copy in /dev/shm: the time the program needs if I/O costs almost nothing

SLOW_HOST = 0.75   # relative to the reference; below it `slow_host` is the target
# fraction of the file that all eight readers together read from the device
READERS_AT_LEAST, READERS_AT_MOST = 0.99, 1.1


def in_turns(cases, rounds, chance=random):
    """Yields (round, number in the round, case): every round has each case once, in a new random order. Round 0 does
    not count."""
    cases = list(cases)
    for turn in range(rounds + 1):
        chance.shuffle(cases)
        for at, case in enumerate(cases):
            yield turn, at, case


def spread(values):
    if not values:
        return {"median": 0, "min": 0, "max": 0}
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def width(of):
    return (of["max"] - of["min"]) / of["median"] if of["median"] > 0 else 0


def check(against, value, at_least=0, at_most=0):
    """A ratio or figure with its target. Without a target it is only shown."""
    state = "shown"
    if at_least or at_most:
        state = "ok" if (not at_least or value >= at_least) and (not at_most or value <= at_most) else "short"
    bound = {"at_least": at_least} if at_least else {"at_most": at_most} if at_most else {}
    return {"against": against, "value": value, **bound, "state": state}


class Results:
    """The measurements, by row (shown or not) and way."""

    def __init__(self):
        self.samples, self.missing = {}, {}

    def add(self, row, way, sample):
        self.samples.setdefault((row, way), []).append(sample)

    def not_measured(self, row, way, why):
        self.missing[row, way] = why

    def rates(self, row, way):
        return spread([sample["rate"] for sample in self.samples.get((row, way), [])])


def ways_of(row, results):
    """The samples of a row by way. Those of its reference may belong to another row."""
    ways = {}
    for way in WAYS:
        name = row.get("reference") if way == "reference" else row["id"]
        samples = results.samples.get((name, way))
        if samples:
            cost = statistics.median((one["client_cpu_seconds"] + one["daemon_cpu_seconds"]) / one["bytes"] * 1e9
                                     if one["bytes"] else 0 for one in samples)
            ways[way] = {**results.rates(name, way), **({"cpu_seconds_per_gb": cost} if cost > 0 else {}),
                         "samples": samples}
    return ways


def ratio_checks(row, ways, in_memory):
    target = row["at_least"].get
    median = {way: figures["median"] for way, figures in ways.items()}

    def ratio(against, at_least, way="weightfs", name=None):
        if median.get(way, 0) > 0 and median.get(against, 0) > 0:
            yield check(name or against, median[way] / median[against], at_least)

    slow = median.get("reference", 0) > 0 and median.get("host", 0) < SLOW_HOST * median["reference"]
    host = max(target("host", 0), target("disk_host", 0))
    if in_memory:
        host = target("host", 0) if row["unit"] == "files/s" else 0
    elif slow:
        host = target("slow_host", host)
    yield from ratio("reference", target("in_memory" if in_memory else "reference", 0))
    yield from ratio("host", host)
    if not in_memory and target("host_to_reference"):
        yield from ratio("reference", target("host_to_reference"), "host", "reference, on the host")
    if in_memory and target("fio_in_memory"):
        yield from ratio("fio", target("fio_in_memory"))
    yield from ratio("noverify", 0)


def beside_checks(row, ways, results):
    """Compares the row with one that differs in one respect only, in the same run."""
    for way, where in (("weightfs", ""), ("host", ", both on the host")):
        ours, theirs = ways.get(way, {"median": 0})["median"], results.rates(row.get("beside"), way)["median"]
        if ours > 0 and theirs > 0:
            yield check(row["beside"] + where, ours / theirs, row["at_least"].get("beside", 0))


def device_checks(row, ways, size):
    """Eight readers must read the file once from the device. Less means that the caches were not cold."""
    read = [sample["device_read_bytes"] for sample in ways.get("weightfs", {"samples": []})["samples"]
            if "device_read_bytes" in sample]
    if row["id"] == "readers-8" and read:
        part = statistics.median(read) / size
        yield check("device reads", part, at_least=READERS_AT_LEAST)
        yield check("device reads", part, at_most=READERS_AT_MOST)


def time_from_memory(ways):
    """The part of a load that is not I/O: the time of the same load from memory."""
    seconds = {way: statistics.median(sample["seconds"] for sample in ways[way]["samples"])
               for way in ("weightfs", "host", "memory") if way in ways}
    if seconds.get("memory", 0) > 0 and seconds.get("weightfs", 0) > 0:
        yield (f"from the mount in {seconds['weightfs']:.2f} s, from the host in {seconds.get('host', 0):.2f} s, from "
               f"memory, where I/O costs next to nothing, in {seconds['memory']:.2f} s")


def judge(row, results, in_memory, size):
    """The row as in --json."""
    ways = ways_of(row, results)
    missing = {way: results.missing[name, way] for way in WAYS for name in (row["id"], row.get("reference"))
               if (name, way) in results.missing}
    checks = [*beside_checks(row, ways, results), *ratio_checks(row, ways, in_memory), *device_checks(row, ways, size)]
    return {"id": row["id"], "group": row["group"], "title": row["title"], "unit": row["unit"], "ways": ways,
            "checks": checks, "not_measured": missing, "notes": list(time_from_memory(ways))}


def noise_of(results):
    """The variation of the references."""
    def first(*rows):
        return next((results.rates(row, "reference") for row in rows if (row, "reference") in results.samples),
                    spread([]))

    read, write = first("reference-read", "reference-direct-read"), first("reference-write", "reference-direct-write")
    return {"read_reference": read, "write_reference": write, "widest": max(width(read), width(write))}
