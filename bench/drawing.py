# SPDX-License-Identifier: Apache-2.0
"""Figures as SVG, whose colors follow the light or dark scheme of the page."""

import math
from html import escape

# Variable -> (light value, dark value).
THEMES = {"page": ("#f7f7f5", "#111318"), "card": ("#ffffff", "#1a1d24"), "ink": ("#1b1e25", "#eceef2"),
          "soft": ("#5b6170", "#a7adba"), "grid": ("#e2e4e9", "#2d313b"), "ours": ("#2166d2", "#5b9bf8"),
          "ours-light": ("#a5c6f5", "#2f5390"), "peer": ("#7d8595", "#8f97a6"), "peer-light": ("#ccd1d9", "#4b5261"),
          "host": ("#d97a21", "#eb9a4a"), "third": ("#3b9c7d", "#55b894"), "alarm": ("#9a3412", "#f2a06b"),
          "alarm-back": ("#fcebdf", "#3a2314")}
WAYS = {"weightfs": "ours", "reference": "peer", "host": "host", "fio": "peer-light", "noverify": "ours-light",
        "memory": "third", "one device": "peer"}
OTHERS = ("peer", "host", "third", "peer-light")
WIDTH, SMALL, LINE = 440, 11, 15   # of a figure; the font; from a text to the next
LONGEST = 50   # the largest bar over the smallest one; beyond it the scale is logarithmic
TICKS = [power * step for power in (10.0 ** exponent for exponent in range(-3, 13)) for step in (1, 2, 5)]
BEYOND = 100   # ratios beyond it, or below its inverse, are arrows


def stylesheet():
    """The variables, in CSS."""
    light, dark = (" ".join(f"--{name}: {values[theme]};" for name, values in THEMES.items()) for theme in (0, 1))
    return (f":root {{ color-scheme: light dark; {light} }}\n"
            f"@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}")


def color_of(way, ways):
    """The color of a way among those of a figure. Reads and writes of a way differ by the line, not by the color."""
    name = way.partition(", ")[0]
    if name in WAYS or name.startswith(("weightfs", "offloaded")):
        return WAYS.get(name, "ours")
    return OTHERS[[each for each in ways if each not in WAYS].index(way) % len(OTHERS)]


def digits(value):
    return f"{value / 1e6:g}M" if value >= 1e6 else f"{value / 1e3:g}k" if value >= 1e4 else f"{value:.3g}"


def text(x, y, words, color="ink", size=SMALL, anchor="start", more=""):
    return (f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="var(--{color})"{more}>'
            f"{escape(words)}</text>")


def line(x1, y1, x2, y2, color="grid", width=1):
    return (f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="var(--{color})" '
            f'stroke-width="{width}"/>')


def bar(x1, x2, y, color, height=10):
    return (f'<rect x="{min(x1, x2):.1f}" y="{y - height / 2:.1f}" width="{max(abs(x2 - x1), 1):.1f}" '
            f'height="{height}" rx="2" fill="var(--{color})"/>')


def svg(parts, height, width=WIDTH):
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height:.0f}" width="{width}" '
            f'font-family="system-ui, Verdana, sans-serif">{"".join(parts)}</svg>')


def svg_file(parts, height, width=WIDTH):
    """The content of an SVG file, which follows the scheme of the page that shows it."""
    card = f'<rect width="{width}" height="{height:.0f}" rx="8" fill="var(--card)"/>'
    return svg([f"<style>{stylesheet()}</style>", card, *parts], height, width) + "\n"


def scale_ticks(most, count=5):
    step = next(tick for tick in TICKS if tick >= most / count)
    return [step * number for number in range(int(most / step + 1e-9) + 1)]


def bars(rows, unit, show):
    """A title for each row, and below it its ways: (name, color, way of a result). show(value): its text."""
    ways = [way for _, entries in rows for _, _, way in entries]
    least, most = min(way["min"] for way in ways), max(way["max"] for way in ways)
    logarithmic = most > LONGEST * least > 0
    first, right = (10 ** math.floor(math.log10(least)) if logarithmic else 0), WIDTH - 60

    def x(value):
        part = (math.log(value / first) / math.log(most / first) if logarithmic else value / most) if value else 0
        return max(part, 0) * right

    parts, y = [], 0
    for title, entries in rows:
        y += LINE
        parts.append(text(0, y - 3, title))
        for name, color, way in entries:
            y += LINE - 2
            said = f"{name}: {show(way['median'])} {unit}, from {show(way['min'])} to {show(way['max'])}"
            parts += [f"<g><title>{escape(said)}</title>", bar(0, x(way["median"]), y - 4, color), "</g>"]
            if way["max"] > way["min"]:
                parts += [line(x(way["min"]), y - 4, x(way["max"]), y - 4, "ink"),
                          *(line(x(way[end]), y - 7, x(way[end]), y - 1, "ink") for end in ("min", "max"))]
            parts.append(text(x(way["max"]) + 6, y, show(way["median"])))
        y += 5
    note = f"{unit}{', logarithmic' * logarithmic}"
    return svg([*parts, text(0, y + LINE, note, "soft")], y + LINE + 6)


def ratio_parts(rows, y=0, left=0):
    """Bars that begin at 1, on a logarithmic scale, with a mark at the target, of (title, explanation, value, target).
    Returns the elements and the lower end."""
    values = [min(max(value, 1 / BEYOND), BEYOND) for _, _, value, _ in rows]
    low, high = min(*values, 0.5) / 1.3, max(*values, 2) * 1.3
    right = WIDTH - left - 64

    def x(value):
        return left + math.log(value / low) / math.log(high / low) * (right - left)

    parts, top = [], y
    for (title, explanation, value, target), shown in zip(rows, values):
        y += LINE
        color = "ours" if value >= (target or 1) else "host"
        parts.append(text(left, y - 3, title) + (text(right + 60, y - 3, explanation, "soft", 10, "end")))
        y += LINE - 2
        parts.append(f"<g><title>{escape(title)}: {value:.2f}</title>{bar(x(1), x(shown), y - 4, color)}</g>")
        if target:
            parts.append(line(x(target), y - 11, x(target), y + 3, "ink", 2))
        arrow = "" if shown == value else " →" if value > 1 else " ←"
        parts.append(text(right + 60, y, f"{value:.2f} ×{arrow}" if value < 10 else f"{value:.0f} ×{arrow}",
                          anchor="end"))
        y += 5
    marks = [tick for tick in TICKS if low < tick < high]
    marks = [tick for tick in marks if len(marks) < 9 or f"{tick:e}"[0] == "1"]
    grid = [line(x(mark), top + 2, x(mark), y, "soft" if mark == 1 else "grid") for mark in marks]
    labels = [text(x(mark), y + LINE - 2, f"{mark:g}", "soft", 10, "middle") for mark in marks]
    return [*grid, *parts, *labels], y + LINE + 4


def ratios(rows):
    return svg(*ratio_parts(rows))


def legend(entries, x, y):
    """Entries (color, dashed, name) in a line."""
    parts, left = [], x
    for color, dashed, name in entries:
        dash = ' stroke-dasharray="4 3"' if dashed else ""
        parts.append(f'<line x1="{x}" y1="{y - 4}" x2="{x + 18}" y2="{y - 4}" stroke="var(--{color})" '
                     f'stroke-width="3"{dash}/>' + text(x + 23, y, name, "soft"))
        x += 34 + 7 * len(name)
        if x > WIDTH - 140:
            x, y = left, y + LINE
    return parts


def curve_parts(curve, x0, y0, width, height):
    """A curve with its axes: x is logarithmic where the values grow by factors."""
    left, right, top, bottom = x0 + 44, x0 + width - 16, y0 + 22, y0 + height - 38
    xs, names = [point["x"] for point in curve["points"]], list(curve["points"][0]["values"])
    most = max(value for point in curve["points"] for value in point["values"].values()) * 1.1 or 1
    logarithmic = len(xs) > 2 and xs[0] > 0 and xs[2] / xs[1] >= 1.9 and xs[1] / xs[0] >= 1.9

    def x(value):
        part = 0.5 if xs[-1] == xs[0] else (math.log(value / xs[0]) / math.log(xs[-1] / xs[0]) if logarithmic
                                            else (value - xs[0]) / (xs[-1] - xs[0]))
        return left + part * (right - left)

    def y(value):
        return bottom - value / most * (bottom - top)

    parts = [text(x0, y0 + 12, curve["title"], size=12, more=' font-weight="600"')]
    for tick in scale_ticks(most, 4):
        parts += [line(left, y(tick), right, y(tick)), text(left - 6, y(tick) + 4, digits(tick), "soft", 10, "end")]
    parts += [text(x(value), bottom + 14, digits(value), "soft", 10, "middle") for value in xs]
    parts += [text((left + right) / 2, bottom + 28, f"{curve['x_title']}; {curve['y_title']}", "soft", 9.5, "middle")]
    for name in names:
        points = [(x(point["x"]), y(point["values"][name])) for point in curve["points"]]
        color, dash = color_of(name, names), ' stroke-dasharray="4 3"' if "write" in name else ""
        path = " ".join(f"{across:.1f},{down:.1f}" for across, down in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="var(--{color})" stroke-width="2"{dash}/>')
        parts += [f'<circle cx="{across:.1f}" cy="{down:.1f}" r="3" fill="var(--{color})"><title>{escape(name)}: '
                  f'{digits(point["values"][name])}</title></circle>'
                  for (across, down), point in zip(points, curve["points"])]
    return parts


def curve_legend(curves, y):
    names = [name for curve in curves for name in curve["points"][0]["values"] if ", " in name]
    return legend([(color_of(name, names), "write" in name, name) for name in dict.fromkeys(names)], 0, y)


def curves(found):
    """All curves of a result, one below the other."""
    parts, height, top = curve_legend(found, 12), 220, 24 + LINE
    for number, one in enumerate(found):
        parts += curve_parts(one, 0, top + number * height, WIDTH, height - 8)
    return svg(parts, top + height * len(found))
