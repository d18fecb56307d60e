# SPDX-License-Identifier: Apache-2.0
"""scripts/report: its page on recorded results (report.json), and its runs on a temporary store."""

import json
import os
import re
import signal
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path

import pytest

import matplotlib  # noqa: F401  (skips this file if it is missing)

from harness import figures as drawn_figures
from harness.filesystems import REPOSITORY, is_mounted, program

sys.path.append(str(REPOSITORY / "bench"))

import drawing  # noqa: E402
from report import figures, page, sections  # noqa: E402
from report.parts import PARTS  # noqa: E402

pytest.importorskip("torch", reason="needs torch: scripts/setup installs it")

# The program with small parts. PARTS and POOL are replaced before it starts.
PROGRAM = f"""
import dataclasses, sys
sys.path.insert(0, {str(REPOSITORY / 'bench')!r})
from report import main
from report.parts import PARTS, Part
main.POOL = {{"small": "512M"}}
def part(name, command, packages=()):
    return Part(name, name.title(), "", packages, command, {{"small": ""}}, {{"small": 1}})
def small(name, arguments):
    return dataclasses.replace(next(part for part in PARTS if part.name == name), sizes={{"small": arguments}})
main.PARTS = (%s,)
sys.exit(main.main([sys.argv[1], "--program", {str(program())!r}, "--out", sys.argv[2]]))
"""


@pytest.fixture
def recorded():
    return json.loads(Path(__file__).with_name("report.json").read_text(encoding="utf-8"))


def entry_of(report, name):
    return next(entry for entry in report["parts"] if entry["name"] == name)


def html_of(report):
    return page.html(report, {entry["name"]: figures.svg(entry) for entry in report["parts"]
                              if entry["state"] == "done"})


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


def test_the_page_has_a_figure_and_tables_for_each_part(recorded):
    text = html_of(recorded)
    assert re.findall(r'<section id="(\w+)"', text) == ["summary", "machine", *(part.name for part in PARTS)]
    for entry in recorded["parts"]:
        part = text[text.index(f'<section id="{entry["name"]}"'):]
        assert entry["title"] in part and "<table>" in part[:part.index("</section>")]
    for drawing in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        ElementTree.fromstring(drawing)
    assert text.count("<svg") == len(PARTS)


def test_the_page_is_self_contained_and_its_references_resolve(recorded):
    text = html_of(recorded)
    assert not re.search(r"<script|<link|@import|\bsrc=|url\((?!#)|href=\"(?!#)", text)
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    assert {*re.findall(r'href="#([^"]+)"', text), *re.findall(r"url\(#([^)]+)\)", text)} <= set(ids)


def test_every_color_has_a_light_and_a_dark_value(recorded):
    text = html_of(recorded)
    style, _, body = text.partition("</style>")
    used = set(re.findall(r"var\(--([\w-]+)\)", text))
    values = [dict(re.findall(r"--([\w-]+): (#\w+)", block)) for block in re.findall(r":root \{(.*?)\}", style,
                                                                                  re.DOTALL)]
    assert len(values) == 2 and values[0].keys() == values[1].keys() and used <= values[0].keys()
    assert not set(re.findall(r"#[0-9a-f]{6}\b", body))


def test_html_and_markdown_have_the_same_cells(recorded):
    rows = [line for line in page.markdown(recorded).splitlines() if line.startswith("|") and "---" not in line]
    cells = [cell for row in rows for cell in re.split(r" \| ", row[2:-2])]
    assert [cell.strip() for cell in cells] == Cells(html_of(recorded)).texts


def test_columns_of_numbers_are_aligned_at_the_right(recorded):
    text = html_of(recorded)
    assert re.search(r"(?<!\w)th\.number, td\.number \{ text-align: right;", text)
    cells = Cells(text)
    for cell, number in zip(cells.texts, cells.numbers):
        if re.fullmatch(r"[0-9.]+( \(.*\))?", cell):
            assert number or cell == "7.4 min", cell
    aligned = {cell for cell, number in zip(cells.texts, cells.numbers) if number}
    assert {"weightfs", "until durable", "0.202 (0.186–0.337)", "7,130", "-"} <= aligned
    assert not {"measured", "compared with", "torch.save, fsync", "1 MiB"} & aligned


def test_the_summary_is_first_and_repeats_figures_of_the_tables(recorded):
    text = html_of(recorded)
    assert text.index('<section id="summary"') < text.index('<section id="machine"')
    rows = sections.summary(recorded).rows
    assert {row[0] for row in rows} == {part.title for part in PARTS}
    assert ["Cold loads of safetensors", "weightfs load_file, GB/s", "1.33", "safetensors", "1.00", "1.28"] in rows
    cells = {cell for entry in recorded["parts"] for table in sections.tables(entry) for row in table.rows
             for value in row for cell in (value, value.split(" (")[0])}
    assert {cell for row in rows for cell in (row[2], row[4])} <= cells


def test_rates_have_one_unit(recorded):
    text = html_of(recorded)
    assert "GB/s" in text and not re.search(r"[KMG]iB/s|MB/s", text)


@pytest.mark.parametrize("name", [part.name for part in PARTS])
def test_the_figures_have_whiskers_and_no_text_overlaps(recorded, name):
    data = entry_of(recorded, name)["data"]
    if name == "bench":
        for row in data["rows"]:
            for way in row["ways"].values():
                way["max"] = 1.3 * way["median"]
    with drawing.styled():
        figure = figures.FIGURES[name](data)
    assert drawn_figures.faults(figure) == []
    for axes in figure.axes:
        assert len(axes.collections) >= max(len(axes.patches), 1), "a median without whiskers"


def test_the_figures_of_a_part_are_those_that_were_recorded(recorded):
    data = entry_of(recorded, "loads")["data"]
    load = data["loads"][0]
    table, = sections.loads(data)
    assert table.rows[0] == ["weightfs load_file", "0.202 (0.186–0.337)", "1.33", "1.28"]
    assert load["median_s"] == pytest.approx(0.202, abs=0.001)
    ways = {(row[0], row[1]): row[4:] for row in sections.checkpoint(entry_of(recorded, "checkpoint")["data"])[0].rows}
    assert ways["torch.save, fsync", "host"] == ["1.00", "1.00"] and ("weightfs Manager", "mount") in ways


@pytest.mark.parametrize("state, headline", [("missing", "NOT MEASURED"), ("failed", "FAILED")])
def test_a_part_without_results_is_named_at_the_top_and_in_its_place(recorded, state, headline):
    entry = entry_of(recorded, "hdf5")
    del entry["data"]
    entry |= {"state": state, "reason": "needs <h5py>"}
    style = {"missing": "missing", "failed": "alarm"}[state]
    assert html_of(recorded).count(f'<p class="{style}">HDF5: {headline}') == 2
    for text, reason in ((html_of(recorded), "needs &lt;h5py&gt;"), (page.markdown(recorded), "needs <h5py>")):
        assert text.count(f"HDF5: {headline}: {reason}") == 2
    assert "GB/s over the size" not in html_of(recorded)


def test_peers_that_are_not_installed_and_wrong_results_are_named(recorded):
    entry_of(recorded, "generate")["data"]["same_tokens"] = False
    entry_of(recorded, "train")["data"]["same_losses"] = False
    html = html_of(recorded)
    for text in (html, page.markdown(recorded)):
        assert "NOT MEASURED: tensorizer: ModuleNotFoundError" in text
        assert text is not html or '<p class="missing">NOT MEASURED: tensorizer' in text
        assert "WRONG RESULT: these differ from the run in memory: all tokens" in text
        assert "WRONG RESULT: these differ from the run in memory: all losses" in text
        assert "Equal to the run in memory: all tokens" not in text


def test_a_busy_machine_is_named(recorded):
    assert "other work slowed these figures" in html_of(recorded)
    recorded["facts"]["load average at the start"] = "0.4 0.2 0.1"
    assert "other work" not in html_of(recorded)


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
def test_the_programs_give_the_numbers_of_their_tables(local, tmp_path):
    pytest.importorskip("h5py")
    parts = """small("hdf5", "--requests 1M,4M --total 4M --processes 1 --threads 1 --blocks 1M --rounds 1 --no-small"),
               small("checkpoint", "--size 1M --rounds 1"), small("loads", "--size 8M --rounds 1"),
               small("generate", "--layers 2 --width 64 --rounds 1 --tokens 1"),
               small("train", "--layers 2 --width 64 --steps 2")"""
    printed, entries, text = report_of(parts, local, tmp_path / "out", 0)
    assert [entry["state"] for entry in entries] == ["done"] * 5, printed
    assert text.count("<svg") == 5 and "WRONG RESULT" not in text and not list(tmp_path.glob("out/*.log"))
    assert re.search(r"^\[2 of 5\] Checkpoints; about [0-9.]+ min left$", printed, re.MULTILINE)


@pytest.mark.usefixtures("weightfs_only")
def test_a_failed_part_does_not_stop_the_others(local, tmp_path):
    printed, entries, text = report_of(
        'part("bench", "{python} -m no.such.module"), part("hdf5", "true", ("no_such_package",)),'
        'small("loads", "--size 8M --rounds 1")', local, tmp_path, 1)
    assert [entry["state"] for entry in entries] == ["failed", "missing", "done"]
    assert "No module named" in entries[0]["reason"] and "needs no_such_package" in entries[1]["reason"]
    assert "Bench: FAILED: status 1: " in text and "report: bench: failed: status 1" in printed
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
    done = subprocess.run([sys.executable, REPOSITORY / "bench/report", *words, "--program", program(), "--out",
                           tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode != 0 and reason in done.stderr and "Traceback" not in done.stderr
