"""Readers of structs: made while modules are imported, and nowhere else."""

from __future__ import annotations

import ast
from pathlib import Path

import weft_kvstore


def makes_a_reader(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Reader"


def test_readers_are_made_while_modules_are_imported() -> None:
    made = 0
    for path in Path(weft_kvstore.__file__).parent.rglob("*.py"):
        tree = ast.parse(path.read_text())
        late = [node for scope in ast.walk(tree) if isinstance(scope, ast.FunctionDef) for node in ast.walk(scope)]
        assert not any(map(makes_a_reader, late)), f"{path}: threads may be the first to read its type"
        made += sum(map(makes_a_reader, ast.walk(tree)))
    assert made >= 7
