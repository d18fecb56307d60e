# SPDX-License-Identifier: Apache-2.0
"""The figures of the documents: scripts/picture on the results in bench/recorded."""

import copy
import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import pytest

import matplotlib  # noqa: F401  (skips this file if it is missing)

from harness import figures
from harness.filesystems import REPOSITORY

sys.path.append(str(REPOSITORY / "bench"))

import drawing  # noqa: E402
import picture  # noqa: E402

NAMES = ["ratios", "scaling"]


def recorded(name):
    return json.loads((REPOSITORY / f"bench/recorded/{name}.json").read_text(encoding="utf-8"))


def drawn(name, result=None):
    with drawing.styled():
        return getattr(picture, name)(result or recorded(name))


def words(svg):
    return ["".join(element.itertext()) for element in ElementTree.fromstring(svg).iter()
            if element.tag.endswith("}text")]


@pytest.mark.parametrize("name", NAMES)
def test_no_text_overlaps_another_one_a_line_or_the_edge(name):
    assert figures.faults(drawn(name)) == []


@pytest.mark.parametrize("name", NAMES)
def test_the_document_shows_the_recorded_result(name):
    published = (REPOSITORY / f"docs/{name}.svg").read_text(encoding="utf-8")
    assert words(published) == words(picture.picture(recorded(name), name)), "run scripts/picture"


@pytest.mark.parametrize("name", NAMES)
def test_every_color_follows_the_scheme_of_the_page(name):
    svg = picture.picture(recorded(name), name)
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


def test_the_bars_of_the_ratios_begin_at_one_and_end_at_the_ratio():
    result, (axes,) = recorded("ratios"), drawn("ratios").axes
    ends = sorted(bar.get_x() + bar.get_width() for bar in axes.patches)
    assert all(bar.get_x() == 1 for bar in axes.patches)
    assert ends == pytest.approx(sorted(check["value"] for row in result["rows"] for check in row["checks"]))


def test_the_colors_of_the_ratios_differ_below_one_and_have_a_legend():
    figure = drawn("ratios")
    legend, = figure.legends
    named = {text.get_text(): patch.get_facecolor() for text, patch in zip(legend.get_texts(), legend.get_patches())}
    for bar in figure.axes[0].patches:
        assert bar.get_facecolor() == named["weightfs is faster" if bar.get_width() > 0 else "weightfs is slower"]


def test_rows_measured_against_the_raw_disk_are_under_their_own_heading():
    found = {text: box.y1 for text, box in figures.texts(drawn("ratios"))}
    raw, host = found["compared with the raw disk (libaio, O_DIRECT)"], found["compared with ext4"]
    own = {what for _, against, what, _ in picture.BARS if against == "reference"}
    for what in (what for _, _, what, _ in picture.BARS):
        assert found[what] < raw if what in own else raw < found[what] < host
    legend, = drawn("ratios").legends
    assert "ext4" not in legend.get_title().get_text()


def test_the_axes_of_the_curves_name_quantity_and_unit():
    for axes, name in zip(drawn("scaling").axes, picture.CURVES):
        assert axes.get_xlabel() and re.search(r", (GB/s|MiB|s)$| per second$", axes.get_ylabel()), name
        low, high = axes.get_ylim()
        assert all(low <= y < high for line in axes.lines for y in line.get_ydata()), f"{name} is cut off"


def test_a_single_round_is_not_called_medians():
    result = recorded("ratios") | {"rounds": 1}
    assert any(text.endswith("one round") for text, _ in figures.texts(drawn("ratios", result)))


def test_rows_that_were_not_measured_are_left_out(tmp_path):
    result = copy.deepcopy(recorded("ratios"))
    result["rows"] = result["rows"][:2]
    assert len(drawn("ratios", result).axes[0].patches) == 2
    for key, reason in (("rows", "no row of the picture"), ("curves", "has no curve")):
        source = tmp_path / f"{key}.json"
        source.write_text(json.dumps(result | {"rows": [], "curves": [{"id": "streams"}] * (key == "curves")}))
        done = subprocess.run([sys.executable, REPOSITORY / "bench/picture.py", source, tmp_path / "x.svg"],
                              capture_output=True, text=True, check=False)
        assert done.returncode == 1 and reason in done.stderr and not (tmp_path / "x.svg").exists()
