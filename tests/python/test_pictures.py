# SPDX-License-Identifier: Apache-2.0
"""The figure of the README: scripts/picture on the result in bench/recorded."""

import copy
import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

from harness import figures
from harness.filesystems import REPOSITORY

sys.path.append(str(REPOSITORY))

from bench import drawing  # noqa: E402


def recorded():
    return json.loads((REPOSITORY / "bench/recorded/ratios.json").read_text(encoding="utf-8"))


def drawn(result=None):
    return drawing.picture(result or recorded())


def test_no_text_overlaps_another_one_a_bar_or_the_edge():
    assert figures.faults(drawn()) == []


def test_the_document_shows_the_recorded_result():
    assert (REPOSITORY / "docs/ratios.svg").read_text(encoding="utf-8") == drawn(), "run scripts/picture"


def test_every_color_follows_the_scheme_of_the_page():
    svg = drawn()
    style = svg[svg.index("<style>"):svg.index("</style>")]
    light, dark = (dict(re.findall(r"--([\w-]+): (#\w+)", part))
                   for part in style.split("@media (prefers-color-scheme: dark)"))
    assert light.keys() == dark.keys() and light["card"] != dark["card"]
    assert not re.search(r"#[0-9a-f]{6}\b", svg.replace(style, "")), "a color that is the same in both schemes"
    assert set(re.findall(r"var\(--([\w-]+)\)", svg)) <= light.keys()


def test_disk_and_date_are_named():
    facts = recorded()["facts"]
    assert any(facts["host's filesystem"] in text and facts["time"] in text for text, _ in figures.texts(drawn()))


def test_the_bars_of_the_ratios_begin_at_one_and_are_as_long_as_the_ratio():
    values = [check["value"] for row in recorded()["rows"] for check in row["checks"]]
    bars = figures.boxes(ElementTree.fromstring(drawn()), "rect")[1:]   # the first one is the card
    host = [bar for bar in bars if bar[1] < bars[-1][1]]   # the last one is relative to the raw disk
    one = host[0][0]   # the first ratio is above one
    assert len(bars) == len(values) and all(min(abs(one - left), abs(one - right)) < 0.2 for left, _, right, _ in host)
    texts = [text for text, _ in figures.texts(drawn())]
    assert sorted(text for text in texts if text.endswith("×")) == sorted(
        f"{value:.2f} ×" if value < 10 else f"{value:.0f} ×" for value in values)


def test_rows_measured_against_the_raw_disk_are_under_their_own_heading():
    found = {text: box[1] for text, box in figures.texts(drawn())}
    raw, host = (next(y for text, y in found.items() if f"as fast as {name}" in text)
                 for name in ("the raw disk", "ext4"))
    own = {what for _, against, what, _ in drawing.RATIOS if against == "reference"}
    for what in (what for _, _, what, _ in drawing.RATIOS):
        assert found[what] > raw if what in own else raw > found[what] > host


def test_a_single_round_is_not_called_medians():
    result = recorded() | {"rounds": 1}
    assert any(text.endswith("one round") for text, _ in figures.texts(drawn(result)))


def test_rows_that_were_not_measured_are_left_out(tmp_path):
    result = copy.deepcopy(recorded())
    result["rows"] = result["rows"][:2]
    assert sum(text.endswith("×") for text, _ in figures.texts(drawn(result))) == 2
    source = tmp_path / "result.json"
    source.write_text(json.dumps(result | {"rows": []}))
    done = subprocess.run([sys.executable, "-m", "bench.drawing", source, tmp_path / "x.svg"], capture_output=True,
                          text=True, check=False, env={**os.environ, "PYTHONPATH": str(REPOSITORY)})
    assert done.returncode == 1 and "no row of the picture" in done.stderr and not (tmp_path / "x.svg").exists()
