"""The suite's page is what the suite and the list of what is left out say."""

from __future__ import annotations

import runpy
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_is_drawn_from_the_list() -> None:
    script = runpy.run_path(str(DOCS / "draw_onnx_suite.py"))
    assert (DOCS / "onnx-suite.md").read_text() == script["page"](), "run: python docs/draw_onnx_suite.py"
