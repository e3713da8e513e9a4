"""Cases of the operators that move elements, reduce them, or compare classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradient_case import Array, GradientCase, Reference, floats, integers
from weft_graph.ir import AttributeValue


def shape_cases() -> list[GradientCase]:
    def reshaped(*shape: int) -> Reference:
        return lambda x: jnp.reshape(x, shape)

    return [
        GradientCase("axis1", "Flatten", (floats(2, 3, 2),), reshaped(2, 6)),
        GradientCase("axis0", "Flatten", (floats(2, 3),), reshaped(1, 6), {"axis": 0}),
        GradientCase("negative", "Flatten", (floats(2, 3, 2),), reshaped(6, 2), {"axis": -1}),
        GradientCase("empty", "Flatten", (floats(0, 3, 2),), reshaped(0, 6)),
        GradientCase("zero_dim", "Flatten", (floats(),), reshaped(1, 1), {"axis": 0}),
        GradientCase("rest", "Reshape", (floats(2, 3, 2), integers(0, -1)), reshaped(2, 6)),
        GradientCase("empty", "Reshape", (floats(0, 3, 2), integers(0, -1)), reshaped(0, 6)),
        GradientCase("allowzero", "Reshape", (floats(0, 3), integers(3, 0)), reshaped(3, 0), {"allowzero": 1}),
        GradientCase("to_scalar", "Reshape", (floats(1, 1), integers()), reshaped()),
        GradientCase("axes", "Squeeze", (floats(1, 3, 1), integers(-1)), reshaped(1, 3)),
        GradientCase("all", "Squeeze", (floats(1, 3, 1),), reshaped(3)),
        GradientCase("attribute", "Squeeze", (floats(1, 3, 1),), reshaped(3, 1), {"axes": (0,)}),
        GradientCase("axes", "Unsqueeze", (floats(2, 3), integers(0, -1)), reshaped(1, 2, 3, 1)),
        GradientCase("attribute", "Unsqueeze", (floats(),), reshaped(1, 1), {"axes": (0, 1)}),
        GradientCase("reversed", "Transpose", (floats(2, 3, 4),), jnp.transpose),
        GradientCase(
            "perm", "Transpose", (floats(2, 3, 4),), lambda x: jnp.transpose(x, (1, 2, 0)), {"perm": (1, 2, 0)}
        ),
        GradientCase("zero_dim", "Transpose", (floats(),), lambda x: x),
        GradientCase(
            "three",
            "Concat",
            (floats(2, 3), floats(2, 1, seed=1), floats(2, 0)),
            lambda *parts: jnp.concatenate(parts, axis=1),
            {"axis": -1},
        ),
        GradientCase("one", "Concat", (floats(2, 3),), lambda x: x, {"axis": 0}),
    ]


def reduction_cases() -> list[GradientCase]:
    cases = []
    references: dict[str, Reference] = {"ReduceSum": jnp.sum, "ReduceMean": jnp.mean}
    for op_type, reduce in references.items():
        for shape, axes, keepdims in (
            ((2, 3, 4), (1,), 1),
            ((2, 3, 4), (0, -1), 0),
            ((2, 3), None, 0),
            ((2, 3), None, 1),
            ((), None, 0),
            ((0, 3), (1,), 0),
        ):
            inputs = (floats(*shape),) if axes is None else (floats(*shape), integers(*axes))
            reference = _reduced(reduce, axes, keepdims)
            cases.append(GradientCase(f"{shape}_{axes}_{keepdims}", op_type, inputs, reference, {"keepdims": keepdims}))
        attributes: dict[str, AttributeValue] = {"axes": (0,), "keepdims": 0}
        cases.append(GradientCase("attribute", op_type, (floats(2, 3),), _reduced(reduce, (0,), 0), attributes))
        noop: dict[str, AttributeValue] = {"noop_with_empty_axes": 1}
        cases.append(GradientCase("noop", op_type, (floats(2, 3),), lambda x: x, noop))
    return cases


def _reduced(reduce: Reference, axes: tuple[int, ...] | None, keepdims: int) -> Reference:
    return lambda x: reduce(x, axis=axes, keepdims=bool(keepdims))


def class_cases() -> list[GradientCase]:
    cases = []
    softmaxes: dict[str, Reference] = {"Softmax": jax.nn.softmax, "LogSoftmax": jax.nn.log_softmax}
    for op_type, reference in softmaxes.items():
        for shape, axis in (((2, 3), -1), ((2, 3, 4), 1), ((3,), 0), ((0, 3), 1)):
            attributes = {"axis": axis}
            cases.append(
                GradientCase(
                    f"{shape}_{axis}",
                    op_type,
                    (floats(*shape),),
                    lambda x, f=reference, a=axis: f(x, axis=a),
                    attributes,
                )
            )
    labels = integers(2, 0, 1, 2, 0)
    images = integers(0, 2, 1, 1, 0, 2, 2, 1).reshape(2, 4)
    weights = floats(3, low=0.5, seed=3)
    for reduction in ("mean", "sum", "none"):
        for name, scores, classes, options in (
            ("plain", floats(5, 3), labels, {}),
            ("pixels", floats(2, 3, 4), images, {}),
            ("ignored", floats(5, 3), labels, {"ignore_index": 2}),
            ("outside", floats(5, 3), np.where(labels == 1, -100, labels), {"ignore_index": -100}),
            ("weighted", floats(2, 3, 4), images, {"ignore_index": 1, "weights": weights}),
        ):
            cases.append(_cross_entropy(f"{name}_{reduction}", scores, classes, reduction, options))
    cases.append(_cross_entropy("log_prob", floats(5, 3), labels, "mean", {}, outputs=2))
    cases.append(_cross_entropy("far", floats(5, 3) * 300, labels, "mean", {}))
    cases.append(_cross_entropy("int32", floats(5, 3), labels.astype(np.int32), "mean", {}))
    cases.append(_cross_entropy("empty", floats(0, 3), integers(), "sum", {}))
    return cases


def _cross_entropy(
    name: str, scores: Array, labels: Array, reduction: str, options: Mapping[str, Any], outputs: int = 1
) -> GradientCase:
    weights, ignored = options.get("weights"), options.get("ignore_index")

    def reference(x: Any) -> Any:
        log_prob = jax.nn.log_softmax(x, axis=1)
        safe = jnp.where(labels == ignored, 0, labels) if ignored is not None else jnp.asarray(labels)
        weight = jnp.ones(labels.shape) if weights is None else jnp.asarray(weights)[safe]
        weight = weight if ignored is None else jnp.where(labels == ignored, 0.0, weight)
        losses = -weight * jnp.take_along_axis(log_prob, jnp.expand_dims(safe, 1), axis=1)[:, 0]
        loss = {"none": losses, "sum": losses.sum(), "mean": losses.sum() / weight.sum()}[reduction]
        return (loss, log_prob)[:outputs] if outputs > 1 else loss

    attributes: dict[str, AttributeValue] = {"reduction": reduction}
    if ignored is not None:
        attributes["ignore_index"] = ignored
    inputs = (scores, labels) if weights is None else (scores, labels, weights)
    return GradientCase(name, "SoftmaxCrossEntropyLoss", inputs, reference, attributes, outputs, fixed=frozenset({2}))
