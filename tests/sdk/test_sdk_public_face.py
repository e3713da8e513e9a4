"""`import weft`: what it offers, and what it does not load."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import weft


def test_every_public_name_is_there() -> None:
    for name in weft.__all__:
        assert getattr(weft, name) is not None
    assert dir(weft) == sorted(weft.__all__)


def test_type_checkers_are_told_of_the_same_names() -> None:
    tree = ast.parse(Path(weft.__file__).read_text())
    block = next(n for n in tree.body if isinstance(n, ast.If) and getattr(n.test, "id", "") == "TYPE_CHECKING")
    imported = {
        (alias.name, statement.module)
        for statement in block.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }
    assert {name for name, _ in imported} == set(weft.__all__)
    for name, module in imported:
        assert weft._HOMES.get(name, "weft") == module


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="weft has no 'Clientt'; did you mean 'Client'"):
        weft.Clientt  # noqa: B018 - that it raises is the point


def loaded_by(code: str) -> set[str]:
    script = f"import sys\n{code}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_weft_loads_nothing_heavy() -> None:
    assert loaded_by("import weft").isdisjoint({"numpy", "httpx", "pydantic", "rich", "typer", "weft_graph"})


def test_building_a_graph_needs_no_network_and_a_client_no_graph() -> None:
    assert loaded_by("import weft; weft.nn.Linear").isdisjoint({"httpx", "rich", "typer", "weft.client"})
    assert loaded_by("import weft; weft.Client()").isdisjoint({"typer", "weft.nn", "weft.expression", "weft_graph.ir"})


def test_no_module_has_the_name_of_something_public() -> None:
    """Whoever imports such a module puts it in the place of what users mean."""
    modules = {path.stem for path in Path(weft.__file__).parent.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert modules & set(weft.__all__) == {"nn", "ops"}
