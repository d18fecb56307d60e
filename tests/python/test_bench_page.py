# SPDX-License-Identifier: Apache-2.0
"""The page of `weightfs bench --report`, drawn by a browser from results of every row."""

import functools
import html
import json
import re
import shutil
import sys

import pytest

from harness import process
from harness.filesystems import REPOSITORY

sys.path.append(str(REPOSITORY))

from bench import page  # noqa: E402
from bench.rows import ROWS  # noqa: E402

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
RATIOS = [0.005, 0.5, 1, 1.3, 200]   # of the rows, in turn
# Says what is tested: all texts with their boxes. The page is in a frame, because the window of a browser may not be as
# narrow as it has to be.
FRAME = """<title></title><script>onmessage = event => document.title = event.data</script>
<iframe src="page.html" width="{width}" height="900" style="border: 0"></iframe>"""
MEASURE = """<script>addEventListener("load", () => {
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), texts = [];
  const box = rect => [rect.left, rect.top, rect.right, rect.bottom];
  for (let node; (node = walker.nextNode());) {
    if (node.parentElement.closest("script, title")) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    for (const rect of range.getClientRects())
      if (node.textContent.trim() && rect.width) texts.push([node.textContent, box(rect)]);
  }
  parent.postMessage(JSON.stringify({texts, window: innerWidth, page: document.documentElement.scrollWidth,
    background: getComputedStyle(document.body).backgroundColor}), "*");
});</script>"""


def outcome(rounds):
    rows = []
    for number, row in enumerate(ROWS):
        ratio, median = RATIOS[number % len(RATIOS)], 2e9 if row["unit"] == "GB/s" else 10.0 ** (3 + number % 4)
        spread = 0.2 * (rounds > 1)
        ways = {way: {"median": value, "min": value * (1 - spread), "max": value * (1 + spread),
                      "samples": [1] * rounds} for way, value in (("weightfs", median * ratio), ("reference", median), ("host", median))}
        rows.append({key: row[key] for key in ("id", "group", "title", "unit")} | {
            "ways": ways, "notes": [], "not_measured": {"fio": "fio is not installed"},
            "checks": [{"against": "reference", "value": ratio, "at_least": 0.9,
                        "state": "ok" if ratio >= 0.9 else "short"},
                       {"against": "host", "value": ratio, "state": "shown"}]})
    spread = {"median": 2e9, "min": 2e9, "max": 2e9}
    return {"rounds": rounds, "in_memory": False, "rows": rows, "facts": {"run": "weightfs bench " + "x" * 300},
            "noise": {"read_reference": spread, "write_reference": spread, "widest": 0.11 * (rounds > 1),
                      "load_average": 0.6, "steal": 0},
            "daemon": {"idle_cpu": 0, "memory_limit_bytes": 1 << 28, "memory_peak_bytes": 1 << 27}}


def page_of(rounds=5):
    result = outcome(rounds)
    return page.html("weightfs bench", result["facts"], [result])


@pytest.fixture(scope="module")
def draw(tmp_path_factory):
    if CHROMIUM is None:
        pytest.skip("needs chromium to draw the page: apt-get install chromium")

    @functools.cache
    def drawn(width=1280, dark=False):
        folder = tmp_path_factory.mktemp("page")
        (folder / "frame.html").write_text(FRAME.format(width=width))
        (folder / "page.html").write_text(page_of().replace("</body>", f"{MEASURE}</body>"))
        done = process.run([CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--window-size=1400,900",
                            f"--blink-settings=preferredColorScheme={0 if dark else 1}", "--virtual-time-budget=5000",
                            f"--user-data-dir={folder / 'profile'}", "--dump-dom", f"file://{folder / 'frame.html'}"],
                           limit=120)
        return json.loads(html.unescape(re.search(r"<title>(\{.*?\})</title>", done.out, re.DOTALL).group(1)))

    return drawn


pytestmark = pytest.mark.limit(300)


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
    assert [text for text, (_, top, _, bottom) in drawn["texts"] if bottom - top < 9] == [], "too small to read"


def test_the_colors_follow_the_scheme(draw):
    light, dark = (draw(dark=dark)["background"] for dark in (False, True))
    assert light != dark


def test_every_figure_of_a_row_has_a_bar_as_long_as_its_part_of_the_largest():
    text = page_of()
    assert all(text.count(f"<td data-name=\"\">{html.escape(row['title'])}</td>") >= 1 for row in ROWS)
    lines = dict(re.findall(r"<tr><td data-name=\"\">(.*?)</td>(.*--bar.*)</tr>", text))
    for number, row in enumerate(ROWS):
        ours, other = (min(part, 1) for part in (RATIOS[number % len(RATIOS)], 1 / RATIOS[number % len(RATIOS)]))
        bars = re.findall(r"--bar: var\(--(\w+)\); --part: (\d+)%", lines[html.escape(row["title"])])
        assert bars == [("ours", f"{ours:.0%}"[:-1]), *[("host", f"{other:.0%}"[:-1])] * 2], row["id"]


def test_one_round_claims_no_noise_and_no_medians():
    assert "one round" in page_of(1) and not re.search(r"[Mm]edians|varied by", page_of(1))
    assert "medians of 5 rounds" in page_of() and "varied by 11 % over 5 rounds" in page_of()
