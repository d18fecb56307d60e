# SPDX-License-Identifier: Apache-2.0
"""The figures of the documents: scripts/picture on the results in bench/recorded."""

import copy
import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import pytest

from harness import figures
from harness.filesystems import REPOSITORY

sys.path.append(str(REPOSITORY))

from bench import drawing  # noqa: E402

NAMES = ["ratios", "scaling"]


def recorded(name):
    return json.loads((REPOSITORY / f"bench/recorded/{name}.json").read_text(encoding="utf-8"))


def drawn(name, result=None):
    return drawing.picture(result or recorded(name))


@pytest.mark.parametrize("name", NAMES)
def test_no_text_overlaps_another_one_a_bar_or_the_edge(name):
    assert figures.faults(drawn(name)) == []


@pytest.mark.parametrize("name", NAMES)
def test_the_document_shows_the_recorded_result(name):
    assert (REPOSITORY / f"docs/{name}.svg").read_text(encoding="utf-8") == drawn(name), "run scripts/picture"


@pytest.mark.parametrize("name", NAMES)
def test_every_color_follows_the_scheme_of_the_page(name):
    svg = drawn(name)
    style = svg[svg.index("<style>"):svg.index("</style>")]
    light, dark = (dict(re.findall(r"--([\w-]+): (#\w+)", part))
                   for part in style.split("@media (prefers-color-scheme: dark)"))
    assert light.keys() == dark.keys() and light["card"] != dark["card"]
    assert not re.search(r"#[0-9a-f]{6}\b", svg.replace(style, "")), "a color that is the same in both schemes"
    assert set(re.findall(r"var\(--([\w-]+)\)", svg)) <= light.keys()


@pytest.mark.parametrize("name", NAMES)
def test_disk_and_date_are_named(name):
    facts = recorded(name)["facts"]
    assert any(facts["host's filesystem"] in text and facts["time"] in text for text, _ in figures.texts(drawn(name)))


def test_the_bars_of_the_ratios_begin_at_one_and_are_as_long_as_the_ratio():
    values = [check["value"] for row in recorded("ratios")["rows"] for check in row["checks"]]
    bars = figures.boxes(ElementTree.fromstring(drawn("ratios")), "rect")[1:]   # the first one is the card
    host = [bar for bar in bars if bar[1] < bars[-1][1]]   # the last one is relative to the raw disk
    one = host[0][0]   # the first ratio is above one
    assert len(bars) == len(values) and all(min(abs(one - left), abs(one - right)) < 0.2 for left, _, right, _ in host)
    texts = [text for text, _ in figures.texts(drawn("ratios"))]
    assert sorted(text for text in texts if text.endswith("×")) == sorted(
        f"{value:.2f} ×" if value < 10 else f"{value:.0f} ×" for value in values)


def test_rows_measured_against_the_raw_disk_are_under_their_own_heading():
    found = {text: box[1] for text, box in figures.texts(drawn("ratios"))}
    raw, host = (next(y for text, y in found.items() if f"as fast as {name}" in text)
                 for name in ("the raw disk", "ext4"))
    own = {what for _, against, what, _ in drawing.RATIOS if against == "reference"}
    for what in (what for _, _, what, _ in drawing.RATIOS):
        assert found[what] > raw if what in own else raw > found[what] > host


def test_the_curves_name_quantity_and_unit():
    texts = [text for text, _ in figures.texts(drawn("scaling"))]
    for curve in recorded("scaling")["curves"]:
        assert f"{curve['x_title']}; {curve['y_title']}" in texts and curve["title"] in texts
        assert re.search(r", (GB/s|MiB|s)$| per second$", curve["y_title"])


def test_a_single_round_is_not_called_medians():
    result = recorded("ratios") | {"rounds": 1}
    assert any(text.endswith("one round") for text, _ in figures.texts(drawn("ratios", result)))


def test_rows_that_were_not_measured_are_left_out(tmp_path):
    result = copy.deepcopy(recorded("ratios"))
    result["rows"] = result["rows"][:2]
    assert sum(text.endswith("×") for text, _ in figures.texts(drawn("ratios", result))) == 2
    source = tmp_path / "result.json"
    source.write_text(json.dumps(result | {"rows": []}))
    done = subprocess.run([sys.executable, "-m", "bench.drawing", source, tmp_path / "x.svg"], capture_output=True,
                          text=True, check=False, env={**os.environ, "PYTHONPATH": str(REPOSITORY)})
    assert done.returncode == 1 and "no row of the picture" in done.stderr and not (tmp_path / "x.svg").exists()


def test_curves_that_were_not_measured_are_left_out():
    curves = recorded("scaling")["curves"]
    for found in (curves[:1], curves[:3]):
        svg = drawn("scaling", recorded("scaling") | {"curves": found})
        assert figures.faults(svg) == [] and sum(svg.count(f">{curve['title']}<") for curve in curves) == len(found)
