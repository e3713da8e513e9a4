"""The drawings of the trade between slice size and credit are what the run beside them says."""

from __future__ import annotations

import runpy
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_drawings_are_drawn_from_the_run() -> None:
    for path, text in runpy.run_path(str(DOCS / "draw_priority.py"))["drawings"]().items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}; run: python docs/draw_priority.py"
