"""What is parsed while other threads parse: CPython before 3.13 counts the depths of all in one place, and raises where
they mix."""

from __future__ import annotations

import ast
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from weft.api.base import _classes
from weft.api.job import JobSpec
from weft.fitting import _first_rows


def disturbed(parse: Callable[..., Any]) -> Callable[..., Any]:
    """Fails three times."""
    mixed = [SystemError("AST constructor recursion depth mismatch")] * 3

    def parsing(*args: Any, **kwargs: Any) -> Any:
        if mixed:
            raise mixed.pop()
        return parse(*args, **kwargs)

    return parsing


def test_the_first_rows_of_a_column_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez(tmp_path / "d.npz", x=np.arange(40.0).reshape(20, 2))
    monkeypatch.setattr(ast, "literal_eval", disturbed(ast.literal_eval))
    with zipfile.ZipFile(tmp_path / "d.npz") as archive:
        np.testing.assert_array_equal(_first_rows(archive, "x"), np.arange(16.0).reshape(8, 2))


def test_the_source_of_a_model_is_read_for_its_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ast, "parse", disturbed(ast.parse))
    assert "JobSpec" in _classes.__wrapped__(JobSpec.__module__)
