"""The converter's page is what the converter does."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

from weft_graph.passes.pipeline import ROLES, SHARED

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(DOCS / "draw_converter.py"))


def test_the_page_is_what_the_converter_does(script: dict[str, Any]) -> None:
    assert (DOCS / "converter.md").read_text(encoding="utf-8") == script["page"](), "run: python docs/draw_converter.py"


def test_the_page_has_every_pass_and_the_example_shows_most(script: dict[str, Any]) -> None:
    page = script["page"]()
    names = {each.name for passes in (SHARED, *ROLES.values()) for each in passes}
    for name in names:
        assert f"\n| {name} | " in page
    shown = {line[2:26].strip() for line in page.splitlines() if " nodes  " in line}
    assert shown >= {"inline", "constant folding", "common subexpressions", "dead code", "row reads", "fusion"}


def test_every_line_of_the_page_fits(script: dict[str, Any]) -> None:
    blocks = script["page"]().split("```")[1::2]
    assert len(blocks) == 2
    assert max(len(line) for block in blocks for line in block.splitlines()) <= 100
