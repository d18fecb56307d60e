#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`weightfs bench`: its arguments and rows, the verdicts (ratios, targets, and conditions under which a figure has no
meaning), and the comparisons of the other programs."""
import contextlib
import io
import os
import pathlib
import sys
import tempfile
import unittest
import unittest.mock

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3]))
from bench import cases, compare, options, rows, store, tables, verdict  # noqa: E402  (after the path to it)
from bench.program import Failure  # noqa: E402

ROWS = {row["id"]: row for row in rows.ROWS}


def judged(name, *, in_memory=False, size=1 << 20, device_reads=None, missing=(), **rates):
    """The row `name`, with these rates measured for each way."""
    row, results = ROWS[name], verdict.Results()
    for way, values in rates.items():
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


class Catalog(unittest.TestCase):
    def test_targets_are_listed(self):
        self.assertEqual(rows.targets(ROWS["read-1m"]), ("≥ 0.95", "≥ 1.0; ≥ 1.3 where the host is slow"))

    def test_rows_are_selected_by_name_group_and_pattern(self):
        for patterns, selected in (([], True), (["numpy", "read"], True), (["*-1m"], True), (["write*"], False)):
            self.assertEqual(rows.is_selected(ROWS["read-1m"], patterns), selected)


class Arguments(unittest.TestCase):
    def refused(self, *words):
        with contextlib.redirect_stderr(io.StringIO()) as printed, self.assertRaises(SystemExit) as ended:
            options.parse("/bin/false", words)
        self.assertEqual((ended.exception.code, printed.getvalue().count("\n")), (2, 1))
        self.assertTrue(printed.getvalue().startswith("weightfs: bench: "))
        return printed.getvalue()

    def test_wrong_ones_are_refused_in_one_line(self):
        for words, reason in (
                ([], "DIR is missing: give a mount or any directory"),
                (["--json", "/proc"], "DIR is missing: --json took '/proc' as its FILE; write '/proc --json'"),
                (["/nonexistent/directory"], "/nonexistent/directory: no such directory"),
                (["/proc", "--host", "/nonexistent"], "--host: /nonexistent: no such directory"),
                (["/proc", "--rounds", "0"], "--rounds 0: too few for a median; give at least 5"),
                (["/proc", "--quick", "--rounds", "0"], "--rounds 0: too few"),
                (["/proc", "--rounds", "4"], "--rounds 4: too few"),
                (["/proc", "--rounds", "x"], "--rounds: 'x' is not a whole number"),
                (["/proc", "--rounds", "-5"], "--rounds"),
                (["/proc", "--rounds"], "--rounds: expected one argument"),
                (["/proc", "--size", "5"], "--size 5: too small; give at least 32M"),
                (["/proc", "--size", "33M"], "--size 33M: not a multiple of 2M; give e.g. 32M or 34M"),
                (["/proc", "--size", "0"], "--size: '0' is not a size"),
                (["/proc", "--size", "much"], "--size: 'much' is not a size"),
                (["/proc", "--seed", "0"], "--seed: '0' is not a whole number of at least 1"),
                (["/proc", "--only", "nonsense"], "--only nonsense: no such row or group"),
                (["/proc", "--only", "read,nonsense*"], "--only nonsense*: no such row or group"),
                (["/proc", "--only", "read", "/tmp"], "unrecognized arguments: /tmp"),
                (["/proc", "--report"], "--report: expected one argument"),
                (["--list", "--report", "x.html"], "--report needs a run")):
            with self.subTest(words):
                self.assertIn(reason, self.refused(*words))

    def test_the_printed_command_repeats_the_run(self):
        words = ["/proc", "--quick", "--seed", "7", "--only", "read", "--only", "write"]
        chosen = options.parse("/bin/false", words)
        self.assertEqual((chosen.only, chosen.rounds), (["read", "write"], 1))
        self.assertEqual(options.command_of(chosen, 64 << 20), "weightfs bench /proc --size 64M --rounds 1 --quick "
                         "--only read,write --seed 7")


class Comparisons(unittest.TestCase):
    def test_every_round_has_each_way_once_and_the_first_does_not_count(self):
        calls = []
        values = compare.measure({"a": [], "b": []}, 2, lambda way: calls.append(way) or len(calls))
        self.assertEqual([sorted(calls[at:at + 2]) for at in (0, 2, 4)], [["a", "b"]] * 3)
        self.assertEqual((len(values["a"]), min(values["a"] + values["b"])), (2, 3))

    def test_ratios_are_medians_of_the_rounds(self):
        row = compare.row("x", "s", {"weightfs": [1, 2, 3], "other": [2, 2, 30]})
        self.assertEqual(row["checks"], [{"against": "other", "value": 2}])
        row = compare.row("x", "GB/s", {"a": [1e9, 4e9], "b": [2e9, 2e9]}, "b")
        self.assertEqual([check["value"] for check in row["checks"]], [1.25, 1])

    def test_ways_with_a_common_base_are_the_lines_of_the_table(self):
        row = compare.row("x", "GB/s", {"a": [1e9, 4e9], "b": [2e9, 2e9]}, "b")
        table, = tables.tables(compare.result("program", "/tmp", 1 << 30, 2, [row]))
        self.assertEqual(table.rows, [["a", "2.50 (1.00–4.00)", "1.25"], ["b", "2.00 (2.00–2.00)", "1.00"]])

    def test_a_result_names_the_machine_and_the_size(self):
        facts = compare.result("program", "/tmp", 1 << 30, 2, [])["facts"]
        self.assertEqual(facts["size"], "1 GiB")
        self.assertLess({"time", "kernel", "host's filesystem"}, facts.keys())


class Stores(unittest.TestCase):
    def exits(self, is_mounted):
        """Leaves a store whose `umount` fails. Returns whether its directory is kept, and the error."""
        with tempfile.TemporaryDirectory() as folder:
            program = pathlib.Path(folder, "weightfs")
            program.write_text("#!/bin/sh\n[ $1 != umount ] || { echo damaged; exit 1; }\n", encoding="utf-8")
            program.chmod(0o755)
            path, point = f"{folder}/s", os.path.realpath(f"{folder}/s/mount")
            with unittest.mock.patch("bench.store.mounts", lambda: [("", point, "")] * is_mounted):
                try:
                    with store.Store(program, path, "1M"):
                        pass
                except Failure as error:
                    return os.path.exists(path), str(error)
            return os.path.exists(path), ""

    def test_a_failed_unmount_is_an_error(self):
        kept, error = self.exits(is_mounted=True)
        self.assertTrue(kept)
        self.assertIn("damaged", error)

    def test_a_mount_that_does_not_exist_is_not_unmounted(self):
        self.assertEqual(self.exits(is_mounted=False), (False, ""))


class Clients(unittest.TestCase):
    def python_of(self, **environment):
        run = unittest.mock.Mock(clients=[], size=1)
        run.options.python = ""
        with (unittest.mock.patch.dict(os.environ, environment, clear=True),
              unittest.mock.patch("bench.cases.Client", side_effect=Failure("ended")) as client):
            cases.start_client(run, "torch")
        return client.call_args.args[0]

    def test_the_active_environment_has_the_libraries(self):
        self.assertEqual(self.python_of(VIRTUAL_ENV="/venv"), "/venv/bin/python")
        self.assertEqual(self.python_of(), "python3")


if __name__ == "__main__":
    unittest.main()
