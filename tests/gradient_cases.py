"""Cases of operators' gradients: inputs, attributes, and the same function written in JAX.

Values are drawn once and can be held by float16, so that one float64 reference serves every element type.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from weft_graph.ir import AttributeValue

Array = np.ndarray[Any, np.dtype[Any]]
Reference = Callable[..., Any]
"""The forward function over JAX arrays, of the inputs that are differentiated; a tuple for several outputs."""


@dataclass(frozen=True)
class GradientCase:
    """One node. `inputs` are float64 where gradients flow and fixed otherwise; `reference` takes the former.

    `fixed` are places of float inputs that nothing is derived for; `smooth` is False where a central difference means
    nothing (ties, jumps), so that only JAX is compared with.
    """

    name: str
    op_type: str
    inputs: tuple[Array | None, ...]
    reference: Reference
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)
    outputs: int = 1
    fixed: frozenset[int] = frozenset()
    smooth: bool = True

    @property
    def differentiated(self) -> tuple[int, ...]:
        return tuple(
            place
            for place, array in enumerate(self.inputs)
            if array is not None and array.dtype == np.float64 and place not in self.fixed
        )


def floats(*shape: int, low: float = -2.0, high: float = 2.0, seed: int = 0) -> Array:
    """Random numbers that float16 holds, float64, none nearer to 0 than 0.05: Relu and Div stay away from it."""
    drawn = np.random.default_rng([seed, *shape]).uniform(low, high, shape)
    apart = np.where(np.abs(drawn) < 0.05, drawn + math.copysign(0.1, high), drawn)
    return apart.astype(np.float16).astype(np.float64)


def distinct(*shape: int) -> Array:
    """Every element another multiple of 1/8, in random order: no ties, and none that a small step could make."""
    count = math.prod(shape)
    return (np.random.default_rng(count).permutation(count).reshape(shape) - count // 2) / 8.0


def integers(*numbers: int) -> Array:
    return np.array(numbers, dtype=np.int64)


_BROADCASTS: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "same": ((2, 3), (2, 3)),
    "rows": ((4, 3), (3,)),
    "both": ((2, 1, 3), (4, 1)),
    "scalar": ((2, 3), ()),
    "zero_dim": ((), ()),
    "empty": ((0, 3), (3,)),
    "empty_stretched": ((0, 3), (1, 1)),
}


def _elementwise() -> list[GradientCase]:
    cases = []
    binary: dict[str, tuple[Reference, float]] = {
        "Add": (jnp.add, -2.0),
        "Sub": (jnp.subtract, -2.0),
        "Mul": (jnp.multiply, -2.0),
        "Div": (jnp.divide, 0.5),
        "Pow": (jnp.power, 0.5),
    }
    for op_type, (reference, low) in binary.items():
        for name, (left, right) in _BROADCASTS.items():
            inputs = (floats(*left, low=low), floats(*right, low=low, seed=1))
            cases.append(GradientCase(name, op_type, inputs, reference))
    unary: dict[str, tuple[Reference, float]] = {
        "Neg": (jnp.negative, -2.0),
        "Sqrt": (jnp.sqrt, 0.5),
        "Exp": (jnp.exp, -2.0),
        "Log": (jnp.log, 0.5),
        "Relu": (jax.nn.relu, -2.0),
        "Sigmoid": (jax.nn.sigmoid, -2.0),
        "Tanh": (jnp.tanh, -2.0),
        "Identity": (lambda x: x, -2.0),
    }
    for op_type, (reference, low) in unary.items():
        for shape in ((2, 3), (), (0, 2), (5,)):
            cases.append(GradientCase(f"shape{list(shape)}", op_type, (floats(*shape, low=low),), reference))
    for exponent in (0, 1, 2, -1):
        cases.append(
            GradientCase(
                f"exponent_{exponent}",
                "Pow",
                (floats(4, low=-2.0), integers(exponent)),
                lambda x, n=exponent: x ** jnp.float64(n),
            )
        )
    cases.append(GradientCase("base_0", "Pow", (np.array([0.0, 2.0]), np.array([2.0, 0.0])), jnp.power, smooth=False))
    cases.append(GradientCase("double", "Cast", (floats(2, 3),), lambda x: x, {"to": 11}))
    far = np.array([-800.0, 800.0, 0.0])
    cases.append(GradientCase("far", "Sigmoid", (far,), jax.nn.sigmoid, smooth=False))
    cases.append(GradientCase("at_zero", "Relu", (np.array([0.0, -1.0]),), jax.nn.relu, smooth=False))
    choice = np.array([[True], [False]])
    cases += [
        GradientCase("both", "Where", (choice, floats(2, 3), floats(3, seed=1)), lambda x, y: jnp.where(choice, x, y)),
        GradientCase("one", "Where", (choice, floats(2, 3), floats(3)), lambda x: jnp.where(choice, x, 0), fixed=_two),
    ]
    return cases


_two = frozenset({2})


def _matrices() -> list[GradientCase]:
    shapes = {
        "matrices": ((2, 3), (3, 4)),
        "vectors": ((3,), (3,)),
        "vector_matrix": ((3,), (3, 4)),
        "matrix_vector": ((2, 3), (3,)),
        "stack_matrix": ((5, 2, 3), (3, 4)),
        "matrix_stack": ((2, 3), (5, 3, 4)),
        "stacks": ((2, 1, 2, 3), (4, 3, 2)),
        "stack_vector": ((5, 2, 3), (3,)),
        "vector_stack": ((3,), (5, 3, 4)),
        "empty_batch": ((0, 3), (3, 4)),
        "empty_inner": ((2, 0), (0, 4)),
        "empty_stack": ((0, 2, 3), (3, 4)),
    }
    cases = [
        GradientCase(name, "MatMul", (floats(*left), floats(*right, seed=1)), jnp.matmul)
        for name, (left, right) in shapes.items()
    ]
    for bias in ((4,), (2, 1), (), (2, 4), None):
        for turned in ((0, 0), (1, 0), (0, 1), (1, 1)):
            left = floats(3, 2) if turned[0] else floats(2, 3)
            right = floats(4, 3, seed=1) if turned[1] else floats(3, 4, seed=1)
            inputs = (left, right) if bias is None else (left, right, floats(*bias, seed=2))
            attributes = {"alpha": 0.5, "beta": 2.0 if bias != (4,) else 1.0, "transA": turned[0], "transB": turned[1]}
            name = f"bias{bias}_turned{turned}"
            cases.append(GradientCase(name, "Gemm", inputs, _gemm(attributes), attributes))
    cases.append(GradientCase("empty", "Gemm", (floats(0, 3), floats(3, 4), floats(4)), _gemm({})))
    return cases


def _gemm(attributes: Mapping[str, Any]) -> Reference:
    def reference(left: Any, right: Any, bias: Any = 0.0) -> Any:
        left = left.T if attributes.get("transA") else left
        right = right.T if attributes.get("transB") else right
        return attributes.get("alpha", 1.0) * (left @ right) + attributes.get("beta", 1.0) * bias

    return reference


def _shapes() -> list[GradientCase]:
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


def _reductions() -> list[GradientCase]:
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


def _classes() -> list[GradientCase]:
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
    return GradientCase(name, "SoftmaxCrossEntropyLoss", inputs, reference, attributes, outputs, fixed=_two)


_CONVOLUTIONS: Sequence[tuple[str, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = (
    ("plain", (2, 2, 5, 4), (3, 2, 3, 2), {}),
    ("strides_pads", (1, 2, 5, 5), (2, 2, 3, 3), {"strides": (2, 2), "pads": (1, 0, 2, 1)}),
    ("dilations", (1, 1, 6, 6), (2, 1, 2, 3), {"dilations": (2, 2), "pads": (1, 1, 1, 1)}),
    ("groups", (2, 4, 4, 4), (6, 2, 2, 2), {"group": 2}),
    ("depthwise", (1, 3, 4, 4), (3, 1, 3, 3), {"group": 3, "pads": (1, 1, 1, 1)}),
    ("one_by_one", (2, 3, 3, 2), (2, 3, 1, 1), {}),
    ("stride_over_kernel", (1, 1, 7, 7), (1, 1, 2, 2), {"strides": (3, 3)}),
    ("line", (2, 2, 7), (3, 2, 3), {"strides": (2,), "pads": (1, 1)}),
    ("volume", (1, 1, 3, 3, 3), (1, 1, 2, 2, 2), {}),
    ("empty", (0, 2, 4, 4), (3, 2, 3, 3), {}),
    ("same_upper", (1, 1, 5, 6), (1, 1, 2, 3), {"auto_pad": "SAME_UPPER", "strides": (2, 2)}),
    ("valid", (1, 1, 5, 5), (1, 1, 3, 3), {"auto_pad": "VALID"}),
)


def _padding(attributes: Mapping[str, Any], rank: int) -> Any:
    """JAX's words for ONNX's pads."""
    if attributes.get("auto_pad", "NOTSET") != "NOTSET":
        return {"SAME_UPPER": "SAME", "SAME_LOWER": "SAME_LOWER", "VALID": "VALID"}[attributes["auto_pad"]]
    pads = attributes.get("pads", (0,) * 2 * rank)
    return tuple(zip(pads[:rank], pads[rank:], strict=True))


def _convolutions() -> list[GradientCase]:
    cases = []
    for name, data, weights, attributes in _CONVOLUTIONS:
        rank = len(data) - 2

        def reference(x: Any, w: Any, b: Any = 0.0, a: dict[str, Any] = attributes, rank: int = rank) -> Any:
            result = jax.lax.conv_general_dilated(
                x,
                w,
                a.get("strides", (1,) * rank),
                _padding(a, rank),
                rhs_dilation=a.get("dilations"),
                feature_group_count=a.get("group", 1),
            )
            return result + jnp.reshape(b, (-1, *(1,) * rank))

        inputs = (floats(*data), floats(*weights, seed=1))
        cases.append(GradientCase(name, "Conv", (*inputs, floats(weights[0], seed=2)), reference, attributes))
        cases.append(GradientCase(f"{name}_no_bias", "Conv", inputs, reference, attributes))
    return cases


_POOLS: Sequence[tuple[str, tuple[int, ...], dict[str, Any], tuple[tuple[int, int], ...]]] = (
    # The last entry is what the windows reach beyond the input, written out because JAX has no ceil_mode.
    ("plain", (2, 2, 4, 4), {"kernel_shape": (2, 2), "strides": (2, 2)}, ((0, 0), (0, 0))),
    ("overlap", (1, 2, 5, 4), {"kernel_shape": (3, 2)}, ((0, 0), (0, 0))),
    ("pads", (1, 1, 5, 5), {"kernel_shape": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1)}, ((1, 1), (1, 1))),
    ("uneven_pads", (1, 1, 4, 5), {"kernel_shape": (3, 3), "pads": (2, 0, 1, 1)}, ((2, 1), (0, 1))),
    ("ceil", (1, 1, 6, 5), {"kernel_shape": (3, 2), "strides": (2, 2), "ceil_mode": 1}, ((0, 1), (0, 1))),
    ("dilations", (1, 1, 6, 6), {"kernel_shape": (2, 2), "dilations": (2, 3)}, ((0, 0), (0, 0))),
    ("same", (1, 1, 5, 5), {"kernel_shape": (2, 2), "auto_pad": "SAME_LOWER"}, ((1, 0), (1, 0))),
    ("line", (2, 2, 6), {"kernel_shape": (3,), "strides": (2,)}, ((0, 0),)),
    ("empty", (0, 2, 4, 4), {"kernel_shape": (2, 2)}, ((0, 0), (0, 0))),
)


def _window(
    x: Any, start: float, combine: Any, attributes: Mapping[str, Any], reach: tuple[tuple[int, int], ...]
) -> Any:
    rank = len(reach)
    return jax.lax.reduce_window(
        x,
        start,
        combine,
        (1, 1, *attributes["kernel_shape"]),
        (1, 1, *attributes.get("strides", (1,) * rank)),
        ((0, 0), (0, 0), *reach),
        window_dilation=(1, 1, *attributes.get("dilations", (1,) * rank)),
    )


def _largest_at_places(x: Any, attributes: Mapping[str, Any]) -> Any:
    """JAX has no derivative of dilated windows; these have stride 1, so each place in the kernel is one slice."""
    (rows, columns), (down, across) = attributes["kernel_shape"], attributes["dilations"]
    high, wide = x.shape[2] - (rows - 1) * down, x.shape[3] - (columns - 1) * across
    parts = [
        x[:, :, i * down : i * down + high, j * across : j * across + wide] for i in range(rows) for j in range(columns)
    ]
    return jnp.max(jnp.stack(parts), axis=0)


def _pools() -> list[GradientCase]:
    cases = []
    for name, shape, attributes, reach in _POOLS:

        def largest(x: Any, a: dict[str, Any] = attributes, reach: Any = reach) -> Any:
            return _largest_at_places(x, a) if "dilations" in a else _window(x, -jnp.inf, jax.lax.max, a, reach)

        def mean(x: Any, a: dict[str, Any] = attributes, reach: Any = reach) -> Any:
            return _window(x, 0.0, jax.lax.add, a, reach) / _window(jnp.ones(x.shape), 0.0, jax.lax.add, a, reach)

        cases.append(GradientCase(name, "MaxPool", (distinct(*shape),), largest, attributes))
        cases.append(GradientCase(name, "AveragePool", (floats(*shape),), mean, attributes))

    ties: dict[str, AttributeValue] = {"kernel_shape": (2, 2), "pads": (1, 1, 1, 1)}

    def first_of_equals(x: Any) -> Any:
        return _window(x, -jnp.inf, jax.lax.max, ties, ((1, 1), (1, 1)))

    tied = np.round(floats(1, 1, 4, 4))
    cases.append(GradientCase("ties", "MaxPool", (tied,), first_of_equals, ties, smooth=False))

    padded: dict[str, AttributeValue] = {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1), "count_include_pad": 1}

    def mean_of_all(x: Any) -> Any:
        return _window(x, 0.0, jax.lax.add, padded, ((1, 1), (1, 1))) / 9

    cases.append(GradientCase("count_pad", "AveragePool", (floats(1, 2, 4, 4),), mean_of_all, padded))
    for shape in ((2, 3, 2, 4), (2, 3, 5), (0, 3, 2, 2), (2, 3)):
        spatial = tuple(range(2, len(shape)))
        cases.append(
            GradientCase(
                f"{shape}",
                "GlobalAveragePool",
                (floats(*shape),),
                lambda x, axes=spatial: jnp.mean(x, axis=axes, keepdims=True),
            )
        )
    return cases


def _normalizations() -> list[GradientCase]:
    cases = []
    for shape in ((4, 3, 2, 2), (5, 3), (3, 2, 4)):
        channels = shape[1]
        statistics = (floats(channels, seed=3), floats(channels, low=0.5, seed=4))
        inputs = (floats(*shape), floats(channels, seed=1), floats(channels, seed=2), *statistics)
        axes = (0, *range(2, len(shape)))
        wide = (1, channels, *(1,) * (len(shape) - 2))

        def normal(x: Any, s: Any, b: Any, m: Any, v: Any, wide: tuple[int, ...] = wide) -> Any:
            m, v, s, b = (jnp.reshape(number, wide) for number in (m, v, s, b))
            return (x - m) / jnp.sqrt(v + 0.01) * s + b

        def trained(x: Any, s: Any, b: Any, axes: tuple[int, ...] = axes, normal: Reference = normal) -> Any:
            return normal(x, s, b, jnp.mean(x, axes), jnp.var(x, axes))

        attributes: dict[str, AttributeValue] = {"epsilon": 0.01, "training_mode": 1}
        cases.append(
            GradientCase(f"train{shape}", "BatchNormalization", inputs, trained, attributes, fixed=frozenset({3, 4}))
        )
        cases.append(GradientCase(f"infer{shape}", "BatchNormalization", inputs, normal, {"epsilon": 0.01}))
    return cases


def _dropouts() -> list[GradientCase]:
    """The identity where nothing is dropped; the mask itself is proved in the tests of the kernel."""
    on, off = np.array(True), np.array(False)
    quarter, one = np.array(0.25), frozenset({1})
    return [
        GradientCase("plain", "Dropout", (floats(2, 3),), lambda x: x),
        GradientCase("evaluation", "Dropout", (floats(2, 3), quarter, off), lambda x: x, fixed=one),
        GradientCase("ratio_0", "Dropout", (floats(2, 3), np.array(0.0), on), lambda x: x, fixed=one),
        GradientCase("empty", "Dropout", (floats(0, 3), quarter, on), lambda x: x, fixed=one),
    ]


def gradient_cases() -> list[GradientCase]:
    """Every case of every operator that has a gradient."""
    return [
        *_elementwise(),
        *_matrices(),
        *_shapes(),
        *_reductions(),
        *_classes(),
        *_convolutions(),
        *_pools(),
        *_normalizations(),
        *_dropouts(),
    ]
