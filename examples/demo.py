"""The two examples, one after the other on one cluster: what `make demo` runs."""

from __future__ import annotations

import sys
from pathlib import Path

import digits
import source_lines
import stage

FOLDER = Path("build/demo")

if __name__ == "__main__":
    sys.exit(stage.perform(FOLDER, digits.act, source_lines.act, takes="about two minutes"))
