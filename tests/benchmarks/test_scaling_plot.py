"""A plot is well-formed and puts numbers where they belong."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from svg_plot import HEIGHT, WIDTH, Axis, Line, plot

SVG = "{http://www.w3.org/2000/svg}"
AXIS = Axis("n", [1.0, 10.0, 100.0])


def test_a_plot_has_its_lines_and_names() -> None:
    lines = [Line("a < b", [(1.0, 1.0), (10.0, 10.0), (100.0, 100.0)]), Line("c", [(1.0, 100.0)])]
    root = ElementTree.fromstring(plot("t & u", AXIS, AXIS, lines))
    texts = [each.text for each in root.iter(f"{SVG}text")]
    assert {"t & u", "a < b", "c", "n", "100"} <= set(texts)
    first = next(iter(root.iter(f"{SVG}polyline"))).attrib["points"].split()
    places = [tuple(map(float, pair.split(","))) for pair in first]
    assert places[1] == pytest.approx([(a + b) / 2 for a, b in zip(places[0], places[2], strict=True)], abs=0.11)
    assert places[0][1] > places[2][1]
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in places)


def test_a_number_without_a_logarithm_is_refused() -> None:
    for points in ([(0.0, 1.0)], [(1.0, -1.0)], []):
        with pytest.raises(ValueError, match="above 0"):
            plot("t", AXIS, AXIS, [Line("a", points)])
