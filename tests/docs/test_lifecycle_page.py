"""The lifecycle page is what the tables say."""

from __future__ import annotations

import runpy
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_is_drawn_from_the_tables() -> None:
    script = runpy.run_path(str(DOCS / "draw_lifecycles.py"))
    assert (DOCS / "lifecycles.md").read_text() == script["page"](), "run: python docs/draw_lifecycles.py"
