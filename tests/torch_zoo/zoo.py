"""All cases by name."""

from __future__ import annotations

from torch_zoo import configured, objectives, pictures, regularized, relations, sequences, tables
from torch_zoo.case import Case

CHAPTERS = (regularized, tables, relations, objectives, sequences, pictures, configured)
CASES: dict[str, Case] = {case.name: case for chapter in CHAPTERS for case in chapter.CASES}
DAILY = [name for name, case in CASES.items() if not case.further]
"""What the suite compares; `WEFT_TORCH_ZOO=all` in the environment has it compare all."""
