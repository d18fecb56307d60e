# SPDX-License-Identifier: Apache-2.0
"""scripts/report: its page on recorded results (report.json), and its runs on a temporary store."""

import json
import os
import re
import signal
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs torch: scripts/setup installs it")

from harness.filesystems import REPOSITORY, is_mounted, program  # noqa: E402
from weightfs.bench import page, report as tool, tables  # noqa: E402

# The program with small parts. PARTS and POOL are replaced before it starts.
PROGRAM = f"""
import dataclasses, sys
from weightfs.bench import report
report.POOL = {{"small": "512M"}}
def part(name, command, packages=()):
    return report.Part(name, name.title(), "", packages, command, {{"small": ""}}, {{"small": 1}})
def small(name, arguments):
    return dataclasses.replace(next(part for part in report.PARTS if part.name == name), sizes={{"small": arguments}})
report.PARTS = (%s,)
sys.exit(report.main([sys.argv[1], "--program", {str(program())!r}, "--examples", {str(REPOSITORY / "examples")!r},
                      "--out", sys.argv[2]]))
"""


@pytest.fixture
def recorded():
    return json.loads(Path(__file__).with_name("report.json").read_text(encoding="utf-8"))


def entry_of(report, name):
    return next(entry for entry in report["parts"] if entry["name"] == name)


def rendered(report):
    return page.html("weightfs report", report["facts"], report["parts"], tool.alarms(report["facts"]))


class Cells(HTMLParser):
    """The text of all cells of tables, and whether each is aligned as a number."""

    def __init__(self, text):
        super().__init__()
        self.texts, self.numbers, self._inside = [], [], False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        if tag in ("td", "th"):
            self._inside = True
            self.texts.append("")
            self.numbers.append(dict(attrs).get("class") == "number")

    def handle_endtag(self, tag):
        if tag in ("td", "th"):
            self._inside = False

    def handle_data(self, data):
        if self._inside:
            self.texts[-1] += data


def test_the_page_has_figures_and_tables_for_each_part(recorded):
    text = rendered(recorded)
    titles = ["Summary", *(part.title for part in tool.PARTS), "The machine"]
    assert re.findall(r"<section><h2>(.*)</h2>", text) == titles
    for section in text.split("<section>")[2:-1]:
        assert "<table>" in section and "--bar: var(--ours)" in section


def test_the_page_is_self_contained(recorded):
    foreign = r"https?://(?!www.w3.org/2000/svg)|<script|<link|@import|\bsrc=|url\(|href="
    assert not re.search(foreign, rendered(recorded))


def test_every_color_has_a_light_and_a_dark_value(recorded):
    style, _, body = rendered(recorded).partition("</style>")
    used = set(re.findall(r"var\(--([\w-]+)\)", style + body)) - {"bar", "part"}   # each cell has its own
    values = [dict(re.findall(r"--([\w-]+): (#\w+)", block)) for block in re.findall(r":root \{(.*?)\}", style,
                                                                                  re.DOTALL)]
    assert len(values) == 2 and values[0].keys() == values[1].keys() and used <= values[0].keys()
    assert not set(re.findall(r"#[0-9a-f]{6}\b", body))


def test_columns_of_numbers_are_aligned_at_the_right(recorded):
    cells = Cells(rendered(recorded))
    aligned = {cell for cell, number in zip(cells.texts, cells.numbers) if number}
    numbers = {cell for cell in cells.texts if re.fullmatch(r"[0-9.]+ \(.*\)", cell)}
    assert len(numbers) > 10 and numbers <= aligned
    assert {"weightfs", "until durable", "-"} <= aligned
    assert not {"measured", "compared with", "torch.save, fsync, here", "1 MiB"} & aligned


def test_the_summary_is_first_and_repeats_figures_of_the_tables(recorded):
    summary = tables.summary(recorded["parts"])
    assert {row[0] for row in summary.rows} == {part.title for part in tool.PARTS}
    assert ["Cold loads of safetensors", "GB/s, GB/s", "weightfs load_file", "1.33", "safetensors", "1.00", "1.28"] in \
        summary.rows
    cells = {cell.split(" (")[0] for part in recorded["parts"] for table in tables.tables(part) for row in table.rows
             for cell in row}
    assert {cell for row in summary.rows for cell in (row[3], row[5])} <= cells


def test_the_figures_of_a_part_are_those_that_were_recorded(recorded):
    table, = tables.tables(entry_of(recorded, "loads"))
    assert table.rows[0] == ["weightfs load_file", "1.33 (0.80–1.44)", "1.28"]
    table, = tables.tables(entry_of(recorded, "checkpoint"))
    ways = {row[0]: (row[2], row[4]) for row in table.rows}
    assert ways["torch.save, fsync, compared"] == ("1.00", "1.00") and "weightfs Manager, here" in ways


@pytest.mark.parametrize("state, headline", [("missing", "NOT MEASURED"), ("failed", "FAILED")])
def test_a_part_without_results_is_named_at_the_top_and_in_its_place(recorded, state, headline):
    at = next(at for at, part in enumerate(recorded["parts"]) if part["name"] == "hdf5")
    recorded["parts"][at] = {"name": "hdf5", "title": "HDF5", "state": state, "reason": "needs <h5py>"}
    style = {"missing": "missing", "failed": "alarm"}[state]
    assert rendered(recorded).count(f'<p class="{style}">HDF5: {headline}: needs &lt;h5py&gt;') == 2


def test_peers_that_are_not_installed_and_wrong_results_are_named(recorded):
    entry_of(recorded, "generate")["alarms"] = ["WRONG RESULT: all tokens"]
    text = rendered(recorded)
    assert '<p class="missing">loads, tensorizer: not measured: ModuleNotFoundError' in text
    assert '<p class="alarm">WRONG RESULT: all tokens' in text


def test_a_busy_machine_is_named(recorded):
    assert "other work slowed these figures" in rendered(recorded)
    recorded["facts"]["load average at the start"] = "0.4 0.2 0.1"
    assert "other work" not in rendered(recorded)


def start(parts, folder, out):
    return subprocess.Popen([sys.executable, "-c", PROGRAM % parts, folder, out], text=True, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE)


def report_of(parts, folder, out, status):
    process = start(parts, folder, out)
    printed = "\n".join(process.communicate())
    assert process.returncode == status and os.listdir(folder) == [], printed
    return printed, json.loads((out / "report.json").read_text())["parts"], (out / "report.html").read_text()


@pytest.mark.limit(400)
@pytest.mark.usefixtures("weightfs_only")
def test_the_programs_give_the_numbers_of_their_tables(local, tmp_path, request):
    """All of them with --full, otherwise one."""
    pytest.importorskip("h5py")
    parts = ['small("loads", "--size 8M --rounds 1")', 'small("checkpoint", "--size 1M --rounds 1")',
             'small("bench", "--quick --size 32M --only stat,write-1m")',
             'small("hdf5", "--requests 1M,4M --size 4M --rounds 1 --no-small")',
             'small("generate", "--layers 2 --width 64 --rounds 1 --tokens 1")',
             'small("train", "--layers 2 --width 64 --steps 2")'][:None if request.config.getoption("full") else 2]
    printed, entries, text = report_of(",".join(parts), local, tmp_path / "out", 0)
    assert [entry["state"] for entry in entries] == ["done"] * len(parts), printed
    assert text.count("--bar: var(--ours)") >= len(parts) and "WRONG RESULT" not in text
    assert not list(tmp_path.glob("out/*.log"))
    assert re.search(rf"^\[2 of {len(parts)}\] Checkpoints; about [0-9.]+ min left$", printed, re.MULTILINE)


@pytest.mark.parametrize("name, options, way", [
    ("offload_generate.py", ["--rounds", "1", "--tokens", "1"], "mapped"),
    ("offload_train.py", ["--steps", "2"], "in memory")], ids=["generate", "train"])
def test_an_example_prints_the_result_of_its_part(local, name, options, way):
    words = [REPOSITORY / "examples" / name, local, *options, "--layers", "2", "--width", "64", "--json"]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=True)
    row, = json.loads(done.stdout)["rows"]
    assert {way, "offloaded"} <= row["ways"].keys() and all(each["median"] > 0 for each in row["ways"].values())


@pytest.mark.usefixtures("weightfs_only")
def test_a_failed_part_does_not_stop_the_others(local, tmp_path):
    printed, entries, text = report_of(
        'part("bench", "{python} -m no.such.module"), part("hdf5", "true", ("no_such_package",)),'
        'small("loads", "--size 8M --rounds 1")', local, tmp_path, 1)
    assert [entry["state"] for entry in entries] == ["failed", "missing", "done"]
    assert "No module named" in entries[0]["reason"] and "needs no_such_package" in entries[1]["reason"]
    assert "Bench: FAILED: " in text and "report: bench: failed: " in printed
    assert "No module named" in (tmp_path / "bench.log").read_text()


@pytest.mark.usefixtures("weightfs_only")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_unmounts_and_removes_everything(local, tmp_path, number):
    events = tmp_path / "events"
    os.mkfifo(events)
    script = tmp_path / "part.py"
    script.write_text("import os, signal, sys\nos.chdir(sys.argv[1])\nopen(sys.argv[2], 'w').write(os.getcwd())\n"
                      "signal.pause()\n", encoding="utf-8")
    process = start(f'part("bench", "{{python}} {script} {{mount}} {events}")', local, tmp_path / "out")
    mounted = Path(events.read_text())
    assert is_mounted(mounted)
    process.send_signal(number)
    _, errors = process.communicate()
    assert process.returncode == 128 + signal.SIGTERM and "interrupted: no report was written" in errors
    assert not is_mounted(mounted) and os.listdir(local) == []


@pytest.mark.parametrize("words, reason", [(["/nowhere"], "/nowhere"), (["/tmp", "--only", "all"], "no part 'all'"),
                                           (["/tmp", "--size", "huge"], "huge")])
def test_wrong_arguments_are_reported(tmp_path, words, reason):
    done = subprocess.run([sys.executable, "-m", "weightfs.bench.report", *words, "--program", program(), "--out",
                           tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode != 0 and reason in done.stderr and "Traceback" not in done.stderr


STARTING = """
import os, signal, subprocess, sys
from weightfs.bench import program

class Popen(subprocess.Popen):
    def __init__(self, *words, **options):
        super().__init__(*words, **options)
        print(self.pid, flush=True)
        os.kill(os.getpid(), signal.SIGTERM)

subprocess.Popen = Popen
sys.exit(program.run("test", lambda: program.command("sleep", "1000")))
"""


def test_a_signal_that_arrives_while_a_process_starts_ends_it():
    run = subprocess.run([sys.executable, "-c", STARTING], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                         check=False)
    assert (run.returncode, run.stderr) == (128 + signal.SIGTERM, "test: terminated\n")
    assert not Path("/proc", run.stdout.strip()).exists()
