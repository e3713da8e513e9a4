"""Kernels generated from graphs, run on the CPU, against NumPy's bodies: operators of elements, and users' rules."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cuda_on_host
from cuda_operator_kernels import every_operator, generated_cases
from cuda_rules import user_rules
from weft_graph.ir import Node
from weft_graph.rules.graph import rule_graph_from_json
from weft_graph.schema import schemas
from weft_kernels.cuda.pointwise import NotTraceableError, fuse, shown
from weft_kernels.cuda.rules import FusedRule
from weft_kernels.rules.lookup import rule_from

needs_compiler = pytest.mark.skipif(
    cuda_on_host.why_not() is not None, reason=f"kernels cannot be run on this CPU: {cuda_on_host.why_not()}"
)
TOLERANCE = {"float16": (2e-3, 1e-3), "bfloat16": (1e-2, 1e-2), "float32": (2e-6, 2e-6), "float64": (1e-14, 1e-14)}


def test_every_operator_of_elements_has_a_kernel() -> None:
    """The list is the schemas': an operator that is added has a kernel, or shows up here."""
    pointwise = {op_type for (_, op_type), schema in schemas().items() if schema.pointwise}
    assert pointwise
    assert {case.node.op_type for case in generated_cases().values()} == pointwise


@needs_compiler
def test_generated_kernels_give_what_the_bodies_give() -> None:
    module = cuda_on_host.host_module(every_operator())
    none = np.zeros(1, np.int64)
    for case, entry in zip(generated_cases().values(), every_operator().entries, strict=True):
        made = np.zeros(case.expected.shape, case.expected.dtype)
        if not made.size:
            continue
        numbers = (np.int64(made.size), np.int64(1), none, np.int64(0))
        module.launch(entry, (2,), (32,), [*case.inputs, made, *numbers])
        rtol, atol = TOLERANCE.get(made.dtype.name, (0, 0))
        np.testing.assert_allclose(made, case.expected, rtol=rtol, atol=atol, err_msg=f"{case.name}\n{case.fused.text}")


def _arrays(dtype: str, count: int, names: list[str]) -> dict[str, Any]:
    draw = np.random.default_rng(count)
    return {name: draw.normal(size=count).astype(dtype) for name in names}


@needs_compiler
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("name", user_rules())
def test_a_users_rule_is_one_kernel(name: str, dtype: str) -> None:
    """Over three updates; and on some rows of a table, where the others stay as they were."""
    strict_arrays = pytest.importorskip("strict_arrays")
    document = user_rules()[name]
    rule, fused = rule_from(document), FusedRule(rule_graph_from_json(document))
    names = ["weight", *rule.state]
    dense, lazy = _arrays(dtype, 35, names), _arrays(dtype, 35, names)
    with strict_arrays.own_kernels() as xp:
        device = {each: strict_arrays.to_device(array) for each, array in dense.items()}
        table = {each: strict_arrays.to_device(array.reshape(7, 5)) for each, array in lazy.items()}
        for step in (1, 2, 3):
            gradient = np.random.default_rng(step).normal(size=35).astype(dtype)
            gradient[:4] = [0, 1e-4 if step == 1 else 0, 2e-6, 300]
            hyper = {**rule.hyper}
            ids = np.array([5, 0, -1, 3])
            rows = gradient[:20].reshape(4, 5)
            fused.apply(
                xp,
                device["weight"],
                strict_arrays.to_device(gradient),
                {each: device[each] for each in rule.state},
                step=step,
                hyper=hyper,
            )
            fused.apply(
                xp,
                table["weight"],
                strict_arrays.to_device(rows),
                {each: table[each] for each in rule.state},
                step=step,
                hyper=hyper,
                ids=strict_arrays.to_device(ids),
            )
            for place, row in enumerate(ids):
                if row >= 0:
                    part = slice(5 * row, 5 * row + 5)
                    rule.apply(
                        lazy["weight"][part], rows[place].copy(), {s: lazy[s][part] for s in rule.state}, step, hyper
                    )
            rule.apply(dense["weight"], gradient.copy(), {each: dense[each] for each in rule.state}, step, hyper)
    rtol, atol = TOLERANCE[dtype]
    for each in names:
        np.testing.assert_allclose(strict_arrays.to_host(device[each]), dense[each], rtol=4 * rtol, atol=4 * atol)
        np.testing.assert_allclose(
            strict_arrays.to_host(table[each]).reshape(-1), lazy[each], rtol=4 * rtol, atol=4 * atol
        )
        untouched = [1, 2, 4, 6]
        np.testing.assert_array_equal(
            strict_arrays.to_host(table[each])[untouched], _arrays(dtype, 35, names)[each].reshape(7, 5)[untouched]
        )


def test_a_users_names_end_no_comment() -> None:
    text = FusedRule(rule_graph_from_json(user_rules()["hostile"])).fused(np.dtype("float32")).text
    for line in text.splitlines():
        assert not line.lstrip().startswith("#")
        assert not line.endswith("\\")
        assert "*/" not in line
    assert text.count("__global__") == 1
    assert shown("a\nb\\c*/d??/e\u2028f") == "a_b_c__d___e_f"


def test_what_is_not_of_elements_is_refused() -> None:
    for node in (
        Node("ReduceSum", "sum", ("in0",), ("out",)),
        Node("Softmax", "soft", ("in0",), ("out",)),
    ):
        with pytest.raises(NotTraceableError, match=node.op_type):
            fuse(
                "no",
                [node],
                arrays={"in0": np.dtype("float32"), "made": np.dtype("float32")},
                numbers={},
                constants={},
                results={"made": "out"},
                by_place=(),
            )
