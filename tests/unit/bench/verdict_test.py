#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The verdicts of `weightfs bench`: ratios, targets, and conditions under which a figure has no meaning."""
import json
import pathlib
import sys
import unittest

SUITE = pathlib.Path(__file__).resolve().parents[3] / "bench/suite"
sys.path.insert(0, str(SUITE.parent))
from suite import verdict  # noqa: E402  (after the path to it)

ROWS = {row["id"]: row for row in json.loads((SUITE / "rows.json").read_text(encoding="utf-8"))}


def judged(name, *, in_memory=False, size=1 << 20, device_reads=None, missing=(), **rates):
    """The row `name`, with these rates measured for each way."""
    row, results = ROWS[name], verdict.Results()
    for way, values in rates.items():
        way = way.replace("_", " ")
        for value in values:
            sample = {"rate": value, "seconds": 1 / value, "bytes": size, "client_cpu_seconds": 1, "daemon_cpu_seconds": 1}
            if device_reads is not None and way == "weightfs":
                sample["device_read_bytes"] = device_reads
            results.add(row["reference"] if way == "reference" else name, way, sample)
    for way, why in missing:
        results.not_measured(row["reference"] if way == "reference" else name, way, why)
    return verdict.judge(row, results, in_memory, size)


def states(row):
    return [(check["against"], check["state"]) for check in row["checks"]]


def megabytes(*rates):
    return [rate * 1e6 for rate in rates]


class Throttled(unittest.TestCase):
    def devices(self, two, one):
        return judged("devices-read", weightfs=megabytes(*two), one_device=megabytes(*one))

    def states(self, two, one):
        return [check["state"] for check in self.devices(two, one)["checks"]]

    def test_two_devices_may_reach_twice_the_rate_of_one(self):
        self.assertEqual(self.states((398, 395, 391), (199, 198, 200)), ["ok", "ok"])

    def test_little_more_than_one_device_misses_the_target(self):
        self.assertEqual(self.states((250, 240, 260), (199, 198, 200)), ["short", "ok"])

    def test_more_than_the_number_of_devices_is_not_a_success(self):
        """If one device is far below its limit, the ratio says nothing about either device."""
        row = self.devices((390, 392, 394), (65, 66, 64))
        self.assertEqual([check["state"] for check in row["checks"]], ["ok", "short"])
        self.assertAlmostEqual(row["checks"][1]["value"], 6, delta=0.1)
        self.assertIn("at_most", row["checks"][1])

    def test_a_throttle_that_did_not_hold_gives_no_ratio(self):
        two = self.devices((1273, 1200, 1250), (199, 198, 200))
        self.assertEqual((two["checks"], two["ways"]), ([], {}))
        self.assertIn("the throttle did not hold: 2 throttled devices gave 1250 MB/s", two["not_measured"]["weightfs"])
        one = self.devices((398, 395, 391), (612, 610, 600))
        self.assertEqual(one["checks"], [])
        self.assertIn("1 throttled device gave 610 MB/s of 200 at most", one["not_measured"]["weightfs"])

    def test_one_noisy_round_does_not_decide(self):
        self.assertEqual(self.states((398, 1273, 391), (199, 198, 300)), ["ok", "ok"])

    def test_other_rows_have_no_throttle(self):
        row = judged("read-1m", weightfs=[9e9])
        self.assertEqual(row["checks"], [])
        self.assertIn("weightfs", row["ways"])

    def test_the_bounds_of_the_list_are_those_of_the_devices(self):
        most = verdict.THROTTLED_DEVICES * (1 + verdict.THROTTLE_TOLERANCE)
        for name in ("devices-read", "devices-write"):
            self.assertAlmostEqual(ROWS[name]["at_most"]["one_device"], most)


class Ratios(unittest.TestCase):
    def test_a_row_is_compared_with_the_reference_of_another_row(self):
        row = judged("read-1m", weightfs=[95, 96, 97], reference=[100], host=[90])
        self.assertEqual(states(row), [("reference", "ok"), ("host", "ok")])
        self.assertEqual(list(row["ways"]), ["weightfs", "reference", "host"])
        self.assertAlmostEqual(row["checks"][0]["value"], 0.96)

    def test_a_slow_host_must_be_beaten_by_more(self):
        self.assertEqual(states(judged("read-1m", weightfs=[100], reference=[100], host=[80])),
                         [("reference", "ok"), ("host", "ok")])
        slow = judged("read-1m", weightfs=[80], reference=[100], host=[70])
        self.assertEqual((states(slow)[1], slow["checks"][1]["at_least"]), (("host", "short"), 1.3))

    def test_in_memory_the_reference_alone_has_a_target(self):
        row = judged("read-1m", in_memory=True, weightfs=[60], reference=[100], host=[300])
        self.assertEqual(states(row), [("reference", "ok"), ("host", "shown")])
        self.assertEqual(states(judged("create", in_memory=True, weightfs=[10], host=[100])), [("host", "short")])
        self.assertEqual(states(judged("fsync-4k", in_memory=True, weightfs=[10], host=[100])), [("host", "shown")])

    def test_a_handle_is_compared_on_the_host_too(self):
        row = judged("direct-read", weightfs=[100], reference=[100], host=[90])
        self.assertIn(("reference, on the host", "short"), states(row))
        self.assertEqual(row["checks"][1]["state"], "shown")

    def test_eight_readers_read_the_file_once_from_the_device(self):
        for read, expected in ((1.0, ["ok", "ok"]), (1.2, ["ok", "short"]), (0, ["short", "ok"])):
            row = judged("readers-8", weightfs=[1], device_reads=read * (1 << 20))
            self.assertEqual([state for against, state in states(row) if against == "device reads"], expected)

    def test_a_load_from_memory_shows_the_time_that_is_not_io(self):
        row = judged("torch-load", weightfs=[1], host=[2], memory=[4])
        self.assertEqual(row["notes"], ["from the mount in 1.00 s, from the host in 0.50 s, from memory, where I/O costs "
                                        "next to nothing, in 0.25 s"])

    def test_a_missing_reference_is_explained_in_each_row(self):
        row = judged("write-1m", weightfs=[1], missing=[("reference", "no disk"), ("fio", "not installed")])
        self.assertEqual(row["not_measured"], {"reference": "no disk", "fio": "not installed"})
        self.assertEqual(row["checks"], [])

    def test_median_and_range(self):
        self.assertEqual(verdict.spread([4, 1, 2, 3]), {"median": 2.5, "min": 1, "max": 4})
        self.assertEqual(verdict.spread([]), {"median": 0, "min": 0, "max": 0})

    def test_the_noise_is_that_of_the_wider_reference(self):
        results = verdict.Results()
        for row, rates in (("reference-read", (100, 110)), ("reference-direct-write", (50, 100))):
            for rate in rates:
                results.add(row, "reference", {"rate": rate})
        noise = verdict.noise_of(results)
        self.assertAlmostEqual(noise["widest"], 50 / 75)
        self.assertEqual(noise["read_reference"]["median"], 105)


if __name__ == "__main__":
    unittest.main()
