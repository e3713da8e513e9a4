"""How messages call the command `weft`: as the reader's shell will find it."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path


def command(arguments: str = "") -> str:
    """`weft jobs`; `.venv/bin/weft jobs` where `weft` is not on the PATH and stands beside this interpreter."""
    beside = Path(sys.executable).parent / "weft"
    if shutil.which("weft") is None and os.access(beside, os.X_OK):
        here = Path.cwd()
        shown = str(beside.relative_to(here) if beside.is_relative_to(here) else beside)
    else:
        shown = "weft"
    return f"{shown} {arguments}".rstrip()
