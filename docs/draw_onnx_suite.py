"""Writes docs/onnx-suite.md: how many tests of ONNX's own backend suite pass, by operator, and what is left out.

Run it with `python docs/draw_onnx_suite.py` after `python tests/onnx_suite.py`, whose list it reads; a test compares.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PAGE = Path(__file__).with_name("onnx-suite.md")
TESTS = Path(__file__).parents[1] / "tests"

INTRODUCTION = """# ONNX's backend suite

Written by `python docs/draw_onnx_suite.py` from the suite of the `onnx` package and from the list of what fails,
`tests/kernels/onnx_left_out.json`; a test runs the suite through `weft_kernels.onnx_backend.Backend`, in which neither
`onnx.reference` nor `onnxruntime` can be imported, and compares.

A test counts for the operator that it is about. One named `..._expanded` runs an operator's definition, a graph of
other operators. Tests of whole models count for none.

weft's graphs have only tensors, so sequences are resolved when a model is read. In four of the tests that pass
(`test_if_opt`, `test_loop13_seq`, `test_sequence_insert_at_front`, `test_split_to_sequence_1`) they depend on values of
inputs. For these the backend reads the model once more, with small inputs of integers and booleans as constants. A job,
whose graph is read before its data, rejects them.
"""


def page() -> str:
    sys.path.insert(0, str(TESTS))
    try:
        from onnx_suite import cases, left_out
        from weft_kernels.onnx_backend import Backend

        every, failed = cases(Backend), left_out()
    finally:
        sys.path.remove(str(TESTS))
    older = [name for name, case in every.items() if case.opset <= 26]
    return "\n".join(
        [
            INTRODUCTION,
            f"**{len(every) - len(failed)} of {len(every)} tests pass**, "
            f"{_share(older, failed)} of those of opset 26 and below.",
            "",
            "## Whole models",
            "",
            *_table("Category", _counted(every, failed, _category)),
            "",
            "## Operators",
            "",
            *_table("Operator", _counted(every, failed, _operator)),
            "",
            "## Left out",
            "",
            "| Test | Reason |",
            "|---|---|",
            *(f"| {name.removesuffix('_cpu')} | {_escaped(reason)} |" for name, reason in sorted(failed.items())),
            "",
        ]
    )


def _share(names: list[str], failed: Mapping[str, str]) -> str:
    passed = sum(name not in failed for name in names)
    return f"{passed} of {len(names)} ({100 * passed / len(names):.1f} %)"


def _counted(every: Mapping[str, Any], failed: Mapping[str, str], key: Any) -> list[tuple[str, int, int]]:
    tests: Counter[str] = Counter()
    passed: Counter[str] = Counter()
    for name, case in every.items():
        word = key(case, every)
        if word is not None:
            tests[word] += 1
            passed[word] += name not in failed
    return [(word, passed[word], tests[word]) for word in sorted(tests)]


def _category(case: Any, _every: Mapping[str, Any]) -> str | None:
    return None if case.category.startswith("Node") else str(case.category).removesuffix("Model")


def _operator(case: Any, every: Mapping[str, Any]) -> str | None:
    """An expanded test's operator is that of the test which it expands."""
    if not case.category.startswith("Node"):
        return None
    whole = re.sub(r"_expanded.*", "_cpu", case.name)
    return str(every.get(whole, case).operators[0])


def _table(head: str, rows: list[tuple[str, int, int]]) -> list[str]:
    return [
        f"| {head} | Pass | Tests |",
        "|---|---|---|",
        *(f"| {word} | {passed} | {all_} |" for word, passed, all_ in rows),
    ]


def _escaped(reason: str) -> str:
    return reason.replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    PAGE.write_text(page())
