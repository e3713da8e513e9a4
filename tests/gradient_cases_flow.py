"""Cases of operators with bodies: branches, loops with and without a known number of turns, scans every way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradient_case import GradientCase, floats
from weft_graph.ir import AttributeValue, Constant, Node, Subgraph

TRUE, FALSE = np.array(True), np.array(False)


def _node(op_type: str, inputs: str, outputs: str, **attributes: AttributeValue) -> Node:
    made = tuple(outputs.split())
    return Node(op_type, f"in_body_{made[0]}", tuple(inputs.split()), made, attributes)


def _body(inputs: str, captured: str, outputs: str, *nodes: Node, constants: Sequence[Constant] = ()) -> Subgraph:
    return Subgraph(tuple(inputs.split()), tuple(captured.split()), nodes, tuple(outputs.split()), tuple(constants))


def if_cases() -> list[GradientCase]:
    # The body that is not taken reads `c`, which the other does not: its gradient is zeros.
    then = _body("", "a b c", "y a", _node("Mul", "a b", "ab"), _node("Exp", "ab", "y"))
    otherwise = _body("", "a b c", "c2 a", _node("Mul", "b c", "bc"), _node("Tanh", "bc", "c2"))
    bodies: dict[str, AttributeValue] = {"then_branch": then, "else_branch": otherwise}
    given = (floats(2, 3, high=1.0), floats(3, seed=1, high=1.0), floats(2, 3, seed=2))
    return [
        GradientCase("then", "If", (TRUE, *given), lambda a, b, c: (jnp.exp(a * b), a), bodies, outputs=2),
        GradientCase("else", "If", (FALSE, *given), lambda a, b, c: (jnp.tanh(b * c), a), bodies, outputs=2),
    ]


def loop_cases() -> list[GradientCase]:
    grown = _node("Mul", "v w", "vw"), _node("Sin", "vw", "turned"), _node("Add", "v turned", "v2")
    counted = _body("i go v", "w", "go v2 turned", *grown)
    # The condition is computed from what is carried, an integer, so that M does not say how many turns there are.
    more = _node("Add", "k one", "k2"), _node("Less", "k2 limit", "go2")
    constants = (Constant("one", np.array(1, np.int64)), Constant("limit", np.array(4, np.int64)))
    until = _body("i go v k", "w", "go2 v2 k2 i2", *grown, *more, _node("Cast", "i", "i2", to=7), constants=constants)

    def reference(turns: int) -> Any:
        def function(v: Any, w: Any) -> tuple[Any, Any]:
            parts = []
            for _ in range(turns):
                parts.append(jnp.sin(v * w))
                v = v + parts[-1]
            return v, jnp.stack(parts) if parts else jnp.zeros((0, *v.shape))

        return function

    given = (floats(2, 3), floats(3, seed=1))
    return [
        GradientCase(f"{turns}_turns", "Loop", (np.array(turns), None, *given), reference(turns), {"body": counted}, 2)
        for turns in (3, 1, 0)
    ] + [
        # Without dimensions, where NumPy's sums are no arrays.
        GradientCase(
            "scalars",
            "Loop",
            (np.array(4), None, floats(seed=2), floats(seed=3)),
            reference(4),
            {"body": counted},
            2,
        ),
        GradientCase(
            "until",
            "Loop",
            (None, TRUE, given[0], np.array(0), given[1]),
            lambda v, w: reference(4)(v, w)[0],
            {"body": until},
        ),
    ]


def scan_cases() -> list[GradientCase]:
    cell = _body(
        "h x s",
        "w r",
        "h2 y s",
        _node("MatMul", "x w", "xw"),
        _node("MatMul", "h r", "hr"),
        _node("Add", "xw hr", "sum"),
        _node("Tanh", "sum", "h2"),
        _node("Mul", "h2 s", "y"),
    )
    weights = (floats(3, 4, seed=2, low=-0.9, high=0.9), floats(4, 4, seed=3, low=-0.9, high=0.9))

    def reference(axes: tuple[int, int], out: tuple[int, int], back: tuple[int, int], out_back: tuple[int, int]) -> Any:
        def function(h: Any, xs: Any, ss: Any, w: Any, r: Any) -> tuple[Any, Any, Any]:
            xs, ss = (jnp.moveaxis(a, axis, 0) for a, axis in zip((xs, ss), axes, strict=True))
            xs, ss = (a[::-1] if turned else a for a, turned in zip((xs, ss), back, strict=True))

            def step(h: Any, given: Any) -> Any:
                x, s = given
                h = jnp.tanh(x @ w + h @ r)
                return h, (h * s, s)

            last, made = jax.lax.scan(step, h, (xs, ss))
            turned = [part[::-1] if backwards else part for part, backwards in zip(made, out_back, strict=True)]
            return (last, *(jnp.moveaxis(part, 0, axis) for part, axis in zip(turned, out, strict=True)))

        return function

    ahead: dict[str, AttributeValue] = {"body": cell, "num_scan_inputs": 2}
    every: dict[str, AttributeValue] = {
        **ahead,
        "scan_input_axes": (1, -1),
        "scan_input_directions": (1, 0),
        "scan_output_axes": (-1, 1),
        "scan_output_directions": (0, 1),
    }
    state, first = floats(2, 4, seed=1), (floats(5, 2, 3), floats(5, 2, 4, seed=4))
    turned = floats(2, 5, 3), floats(2, 4, 5, seed=4)
    none = np.zeros((0, 2, 3)), np.zeros((0, 2, 4))
    plain = reference((0, 0), (0, 0), (0, 0), (0, 0))
    return [
        GradientCase("ahead", "Scan", (state, *first, *weights), plain, ahead, 3),
        GradientCase(
            "every_way",
            "Scan",
            (state, *turned, *weights),
            reference((1, -1), (-1, 1), (1, 0), (0, 1)),
            every,
            3,
        ),
        GradientCase("no_turns", "Scan", (state, *none, *weights), plain, ahead, 3),
    ]


def stop_gradient_cases() -> list[GradientCase]:
    return [
        GradientCase(
            "value", "StopGradient", (floats(2, 3),), jax.lax.stop_gradient, domain="weft", smooth=False, flat=True
        )
    ]
