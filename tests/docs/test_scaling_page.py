"""The scaling page and its plots are what the model says of the measured constants."""

from __future__ import annotations

import runpy
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_is_drawn_from_the_run() -> None:
    for path, text in runpy.run_path(str(DOCS / "draw_scaling.py"))["documents"]().items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}; run: python docs/draw_scaling.py"
