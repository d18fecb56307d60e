# SPDX-License-Identifier: Apache-2.0
"""The page of `weightfs bench --report`, drawn by a browser from results of every row."""

import functools
import html
import json
import re
import shutil

import pytest

from harness import process
from harness.filesystems import REPOSITORY

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PAGE = (REPOSITORY / "bench/suite/report.html").read_text(encoding="utf-8")
RATIOS = [0.05, 0.5, 1, 1.3, 20]   # of the rows, in turn; the scale ends at 1/8 and 8
# Says what is tested: all texts with their boxes, and the shapes of the ratios. The page is in a frame, because the
# window of a browser may not be as narrow as it has to be.
FRAME = """<title></title><script>onmessage = event => document.title = event.data</script>
<iframe src="page.html" width="{width}" height="900" style="border: 0"></iframe>"""
MEASURE = """<script>addEventListener("load", () => {
  const walker = document.createTreeWalker(document.getElementById("page"), NodeFilter.SHOW_TEXT), texts = [];
  const box = rect => [rect.left, rect.top, rect.right, rect.bottom];
  for (let node; (node = walker.nextNode());) {
    const range = document.createRange();
    range.selectNodeContents(node);
    for (const rect of range.getClientRects())
      if (node.textContent.trim() && rect.width) texts.push([node.textContent, box(rect)]);
  }
  const shapes = [...document.querySelectorAll(".ratios .way[title]")].map(way => ({name: way.title,
    arrow: way.querySelector(".arrow")?.className ?? null, dots: way.querySelectorAll(".dot").length}));
  const frames = [...document.querySelectorAll("section")].map(section => ({
    title: section.querySelector("h2")?.textContent, axes: section.querySelectorAll(".row > .way").length, groups: section.querySelectorAll("h3, .group").length}));
  parent.postMessage(JSON.stringify({texts, shapes, frames, window: innerWidth,
    page: document.documentElement.scrollWidth, background: getComputedStyle(document.body).backgroundColor}), "*");
});</script>"""


def outcome(rounds):
    catalog = json.loads((REPOSITORY / "bench/suite/rows.json").read_text(encoding="utf-8"))
    rows = []
    for number, row in enumerate(catalog):
        ratio, median = RATIOS[number % len(RATIOS)], 2e9 if row["unit"] == "GB/s" else 10.0 ** (3 + number % 4)
        spread = 0.2 * (rounds > 1)
        ways = {way: {"median": value, "min": value * (1 - spread), "max": value * (1 + spread)}
                for way, value in (("weightfs", median * ratio), ("reference", median), ("host", median))}
        rows.append({key: row[key] for key in ("id", "group", "title", "unit")} | {
            "ways": ways, "notes": [], "not_measured": {"fio": "fio is not installed"},
            "checks": [{"against": "reference", "value": ratio, "at_least": 0.9,
                        "state": "ok" if ratio >= 0.9 else "short"},
                       {"against": "host", "value": ratio, "state": "shown"}]})
    curves = json.loads((REPOSITORY / "bench/recorded/scaling.json").read_text(encoding="utf-8"))["curves"]
    spread = {"median": 2e9, "min": 2e9, "max": 2e9}
    return {"rounds": rounds, "in_memory": False, "rows": rows, "facts": {"run": "weightfs bench " + "x" * 300},
            "noise": {"read_reference": spread, "write_reference": spread, "widest": 0.11 * (rounds > 1),
                      "load_average": 0.6, "steal": 0},
            "daemon": {"idle_cpu": 0, "memory_limit_bytes": 1 << 28, "memory_peak_bytes": 1 << 27},
            "curves": [curve | {"unit": "GB/s", "limit": "limited by the disk", "checks": []} for curve in curves]}


@pytest.fixture(scope="module")
def draw(tmp_path_factory):
    @functools.cache
    def drawn(width=1280, rounds=5, dark=False):
        folder = tmp_path_factory.mktemp("page")
        (folder / "frame.html").write_text(FRAME.format(width=width))
        (folder / "page.html").write_text(PAGE.replace("@DATA@", json.dumps(outcome(rounds))).replace(
            "</body>", f"{MEASURE}</body>"))
        done = process.run([CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--window-size=1400,900",
                            f"--blink-settings=preferredColorScheme={0 if dark else 1}", "--virtual-time-budget=5000",
                            f"--user-data-dir={folder / 'profile'}", "--dump-dom", f"file://{folder / 'frame.html'}"],
                           limit=120)
        return json.loads(html.unescape(re.search(r"<title>(\{.*?\})</title>", done.out, re.DOTALL).group(1)))

    return drawn


pytestmark = [pytest.mark.limit(300), pytest.mark.skipif(
    CHROMIUM is None, reason="needs chromium to draw the page: apt-get install chromium")]


def overlapping(texts, tolerance=2):
    ordered = sorted(texts, key=lambda each: each[1][1])
    for number, (one, (left, top, right, bottom)) in enumerate(ordered):
        for other, (left2, top2, right2, bottom2) in ordered[number + 1:]:
            if top2 >= bottom - tolerance:
                break
            if min(right, right2) - max(left, left2) > tolerance and min(bottom, bottom2) - top2 > tolerance:
                yield one, other


@pytest.mark.parametrize("width", [1280, 1000, 800, 420])
def test_no_text_overlaps_another_one_or_leaves_the_window(draw, width):
    drawn = draw(width)
    assert drawn["window"] == width and drawn["page"] <= width, "the page scrolls sideways"
    assert list(overlapping(drawn["texts"])) == []
    assert [text for text, (left, _, right, _) in drawn["texts"] if left < 0 or right > width] == []
    assert [text for text, (_, top, _, bottom) in drawn["texts"] if bottom - top < 10] == [], "too small to read"


def test_a_ratio_beyond_the_scale_is_an_arrow(draw):
    shapes = draw()["shapes"]
    assert len(shapes) == 2 * len(outcome(5)["rows"])
    for shape in shapes:
        ratio = float(re.search(r": ([0-9.]+) of the", shape["name"]).group(1))
        arrow = "arrow" if ratio > 8 else "arrow low" if ratio < 1 / 8 else None
        assert (shape["arrow"], shape["dots"]) == (arrow, 0 if arrow else 1), shape


def test_a_frame_has_one_scale_and_long_lists_have_groups(draw):
    frames = {frame["title"]: frame for frame in draw()["frames"]}
    assert len(frames) == 16
    groups = set(frames) - {"Ratios", "How it grows", "All figures", "The run", "Not measured"}
    assert all(frames[title]["axes"] == 1 for title in groups), frames
    assert frames["Ratios"]["groups"] == frames["All figures"]["groups"] == len(groups)


def test_one_round_claims_no_noise_and_no_medians(draw):
    words = " ".join(text for text, _ in draw(rounds=1)["texts"])
    assert "1 round" in words and not re.search(r"noise|[Mm]edians|whiskers", words)
    words = " ".join(text for text, _ in draw()["texts"])
    assert "medians of 5 rounds" in words and "noise: spread of the reference over 5 rounds" in words


def test_the_colors_follow_the_scheme(draw):
    light, dark = (draw(dark=dark)["background"] for dark in (False, True))
    assert light != dark
    values = [dict(re.findall(r"--([\w-]+): (#\w+)", block))
              for block in re.findall(r":root \{(.*?)\}", PAGE, re.DOTALL)]
    assert values[0].keys() == values[1].keys() == set(re.findall(r"var\(--([a-z-]+)\)", PAGE)) | {"fio", "noverify"}
