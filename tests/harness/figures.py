# SPDX-License-Identifier: Apache-2.0
"""Where the texts of a figure of bench/drawing.py are. Their widths are those of a wide font, such as Verdana."""

import itertools
import xml.etree.ElementTree as ElementTree

WIDE, TOLERANCE = 0.56, 0.5   # the mean width of a letter, of the font's size; pixels that two boxes may share


def shift(group):
    """The offsets of a group."""
    move = group.get("transform", "translate(0 0)")[len("translate("):-1].split()
    return float(move[0]), float(move[1])


def walk(element, x=0, y=0):
    """Yields each element with the offset of its groups."""
    for child in element:
        yield child, x, y
        dx, dy = shift(child)
        yield from walk(child, x + dx, y + dy)


def texts(svg):
    """Returns (text, box) of each text of the figure."""
    found = []
    for element, dx, dy in walk(ElementTree.fromstring(svg)):
        if not element.tag.endswith("}text"):
            continue
        size, x, y = (float(element.get(name)) for name in ("font-size", "x", "y"))
        width = WIDE * size * len(element.text)
        left = x + dx - {"start": 0, "middle": width / 2, "end": width}[element.get("text-anchor")]
        found.append((element.text, (left, y + dy - 0.75 * size, left + width, y + dy + 0.2 * size)))
    return found


def boxes(tree, tag):
    """The boxes of the elements of a tag."""
    found = []
    for element, dx, dy in walk(tree):
        if element.tag.endswith("}" + tag):
            x, y, width, height = (float(element.get(name, 0)) for name in ("x", "y", "width", "height"))
            found.append((x + dx, y + dy, x + dx + width, y + dy + height))
    return found


def overlap(one, other):
    return (min(one[2], other[2]) - max(one[0], other[0]) > TOLERANCE
            and min(one[3], other[3]) - max(one[1], other[1]) > TOLERANCE)


def faults(svg):
    """Texts that overlap each other or bars, or that the figure cuts off."""
    tree = ElementTree.fromstring(svg)
    found, (_, _, width, height) = texts(svg), map(float, tree.get("viewBox").split())
    bars = [box for box in boxes(tree, "rect") if box[2] - box[0] < width]
    pairs = [(one, other) for (one, box), (other, another) in itertools.combinations(found, 2) if overlap(box, another)]
    struck = [text for text, box in found if any(overlap(box, bar) for bar in bars)]
    return pairs + struck + [text for text, box in found if box[0] < -TOLERANCE or box[1] < -TOLERANCE
                             or box[2] > width + TOLERANCE or box[3] > height + TOLERANCE]
