# SPDX-License-Identifier: Apache-2.0
"""The look of the figures of scripts/picture and scripts/report: matplotlib draws with the light colors, and the SVG
has variables in their place, which follow the light or dark scheme of the page."""

import io
import re

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402  (after the choice of what it draws with)

# Variable -> (light value, dark value). The light values differ from each other.
THEMES = {"page": ("#f7f7f5", "#111318"), "card": ("#ffffff", "#1a1d24"), "ink": ("#1b1e25", "#eceef2"),
          "soft": ("#5b6170", "#a7adba"), "grid": ("#e2e4e9", "#2d313b"), "ours": ("#2166d2", "#5b9bf8"),
          "ours-light": ("#a5c6f5", "#2f5390"), "peer": ("#7d8595", "#8f97a6"), "peer-light": ("#ccd1d9", "#4b5261"),
          "host": ("#d97a21", "#eb9a4a"), "third": ("#3b9c7d", "#55b894"), "alarm": ("#9a3412", "#f2a06b"),
          "alarm-back": ("#fcebdf", "#3a2314")}
COLORS = {name: light for name, (light, _) in THEMES.items()}
STYLE = {"font.size": 9, "font.sans-serif": ["DejaVu Sans", "Verdana", "sans-serif"], "svg.fonttype": "none",
         "figure.facecolor": COLORS["card"], "axes.facecolor": "none", "axes.spines.top": False,
         "axes.spines.right": False, "text.color": COLORS["ink"], "axes.labelcolor": COLORS["soft"],
         "axes.edgecolor": COLORS["soft"], "axes.titlesize": 10, "axes.titlelocation": "left", "axes.titlepad": 9,
         "axes.axisbelow": True, "xtick.color": COLORS["soft"], "ytick.color": COLORS["soft"],
         "grid.color": COLORS["grid"], "legend.frameon": False, "legend.fontsize": 8,
         "axes.prop_cycle": matplotlib.cycler(color=[COLORS["ink"]]), "figure.constrained_layout.use": True}


def styled():
    """The context in which a figure is drawn and saved."""
    return plt.rc_context(STYLE)


def stylesheet():
    """The variables, in CSS."""
    light, dark = (" ".join(f"--{name}: {values[theme]};" for name, values in THEMES.items()) for theme in (0, 1))
    return (f":root {{ color-scheme: light dark; {light} }}\n"
            f"@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}")


def svg(figure, name):
    """The <svg> element of a figure for a page with the stylesheet. Its ids begin with `name`. Closes the figure."""
    stream = io.StringIO()
    with plt.rc_context(STYLE | {"svg.hashsalt": name}):
        figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
    plt.close(figure)
    text = stream.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg"):], flags=re.DOTALL)
    for variable, color in COLORS.items():
        text = text.replace(color, f"var(--{variable})")
    return re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", text)


def svg_file(figure, name):
    """The content of an SVG file, which follows the scheme of the page that shows it. Closes the figure."""
    return svg(figure, name).replace("<defs>", f"<style>{stylesheet()}</style>\n<defs>", 1)
