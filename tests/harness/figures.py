# SPDX-License-Identifier: Apache-2.0
"""Where the texts of a matplotlib figure are."""

import itertools

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

TOLERANCE = 0.5   # pixels that two boxes may share


def texts(figure):
    """Draws the figure. Returns (text, box in pixels) of each text in it."""
    FigureCanvasAgg(figure).draw()
    hidden = {label for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)
              for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()) for label in (tick.label1, tick.label2)
              if not min(axis.get_view_interval()) <= tick.get_loc() <= max(axis.get_view_interval())}
    return [(text.get_text(), text.get_window_extent()) for text in figure.findobj(Text)
            if text.get_visible() and text.get_text().strip() and text not in hidden]


def overlap(one, other):
    return (min(one.x1, other.x1) - max(one.x0, other.x0) > TOLERANCE
            and min(one.y1, other.y1) - max(one.y0, other.y0) > TOLERANCE)


def faults(figure):
    """Texts that overlap each other, bars or vertical lines, or that the figure cuts off."""
    found, shapes = texts(figure), []
    for axes in figure.axes:
        shapes += [patch.get_window_extent() for patch in axes.patches]
        shapes += [path.get_extents(axes.transData).padded(1) for lines in axes.collections
                   for path in lines.get_paths() if len(path.vertices) == 2]
    pairs = [(one, other) for (one, box), (other, another) in itertools.combinations(found, 2) if overlap(box, another)]
    struck = [text for text, box in found if any(overlap(box, shape) for shape in shapes)]
    inside = figure.bbox.padded(TOLERANCE)
    return pairs + struck + [text for text, box in found if not (inside.x0 <= box.x0 and box.x1 <= inside.x1
                                                                 and inside.y0 <= box.y0 and box.y1 <= inside.y1)]
