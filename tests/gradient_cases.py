"""Every case of every operator that has a gradient: those of all modules `gradient_cases_*` beside this one."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path

from gradient_case import GradientCase


def gradient_cases() -> list[GradientCase]:
    """Fresh records; arrays are not shared with a case that was given before."""
    return [case for make in _makers() for case in make()]


def _makers() -> Iterator[Callable[[], list[GradientCase]]]:
    """A module's functions whose names end with `_cases`, and which are its own."""
    for path in sorted(Path(__file__).parent.glob("gradient_cases_*.py")):
        module = importlib.import_module(path.stem)
        for name, value in sorted(vars(module).items()):
            if (
                not name.startswith("_")
                and name.endswith("_cases")
                and callable(value)
                and value.__module__ == module.__name__
            ):
                yield value
