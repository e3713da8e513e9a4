"""The options of `torch.optim`'s optimizers that the built-in rules do not have, as rules that are graphs.

They are optional for a job, so they cost no kernels of their own: each is written once, as a formula, and runs wherever
a user's rule does. Numbers, defaults and the order of operations are PyTorch's, where g is the gradient and t counts a
parameter's updates from 1:

| rule | is | formula |
|---|---|---|
| sgd_dampened | `SGD(dampening=)` | v = momentum * v + (1 - dampening) * g, and v = g where t is 1; w -= lr * v |
| adam_l2 | `Adam(weight_decay=)` | g += weight_decay * w, then Adam |
| adam_amsgrad | `Adam(amsgrad=True)` | the same, divided by the root of the largest v so far: Reddi et al. 2018 |
| adamw_amsgrad | `AdamW(amsgrad=True)` | AdamW in the same way |
| adagrad_lr_decay | `Adagrad(lr_decay=)` | lr / (1 + (t - 1) * lr_decay) in place of lr |
| rmsprop_momentum | `RMSprop(momentum=)` | v = momentum * v + g / (sqrt(s) + eps); w -= lr * v |
| rmsprop_centered | `RMSprop(centered=True)` | s - m^2 in place of s, m the mean of g: Graves 2013 |
| rmsprop_centered_momentum | both | |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Final

import numpy as np

from weft_graph.ir import Constant, Graph, Input, Node
from weft_graph.rules.graph import GRADIENT, STEP, WEIGHT, RuleGraph, checked
from weft_graph.types import DType, TensorType


class _Writer:
    """Writes a rule's graph: a node for each operator between values."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.constants: list[Constant] = []

    def value(self, op_type: str, *read: _Value | float) -> _Value:
        """What an operator of ONNX's gives."""
        names = tuple(each.name if isinstance(each, _Value) else self._constant(each) for each in read)
        name = f"{op_type.lower()}_{len(self.nodes)}"
        self.nodes.append(Node(op_type, name, names, (name,)))
        return _Value(self, name)

    def _constant(self, number: float) -> str:
        name = f"number_{len(self.constants)}"
        self.constants.append(Constant(name, np.asarray(number, np.float64)))
        return name


class _Value:
    """A value of a rule, with Python's operators."""

    def __init__(self, writer: _Writer, name: str) -> None:
        self.writer, self.name = writer, name

    def __add__(self, other: _Value | float) -> _Value:
        return self.writer.value("Add", self, other)

    def __sub__(self, other: _Value | float) -> _Value:
        return self.writer.value("Sub", self, other)

    def __rsub__(self, other: float) -> _Value:
        return self.writer.value("Sub", other, self)

    def __mul__(self, other: _Value) -> _Value:
        return self.writer.value("Mul", self, other)

    def __truediv__(self, other: _Value) -> _Value:
        return self.writer.value("Div", self, other)

    def __pow__(self, other: _Value) -> _Value:
        return self.writer.value("Pow", self, other)

    def root(self) -> _Value:
        return self.writer.value("Sqrt", self)

    def at_most(self, bound: float) -> _Value:
        return self.writer.value("Min", self, bound)

    def or_larger(self, other: _Value) -> _Value:
        return self.writer.value("Max", self, other)


Values = Mapping[str, _Value]
Next = dict[str, _Value]
"""The next weight and the next states, by name."""


def _sgd_dampened(v: Values) -> Next:
    gradient = v[GRADIENT] + v["weight_decay"] * v[WEIGHT]
    # The first update takes the gradient whole: `(t - 1)` is 0 there, and counts as 1 afterwards.
    taken = 1.0 - v["dampening"] * (v[STEP] - 1.0).at_most(1.0)
    velocity = v["momentum"] * v["velocity"] + taken * gradient
    return {WEIGHT: v[WEIGHT] - v["lr"] * velocity, "velocity": velocity}


def _adam(v: Values, *, decoupled: bool, amsgrad: bool) -> Next:
    weight, gradient = v[WEIGHT], v[GRADIENT]
    if decoupled:
        weight = weight * (1.0 - v["lr"] * v["weight_decay"])
    else:
        gradient = gradient + v["weight_decay"] * weight
    mean = v["beta1"] * v["mean"] + (1.0 - v["beta1"]) * gradient
    variance = v["beta2"] * v["variance"] + (1.0 - v["beta2"]) * (gradient * gradient)
    states = {"mean": mean, "variance": variance}
    divided_by = variance
    if amsgrad:
        divided_by = states["largest"] = v["largest"].or_larger(variance)
    divisor = divided_by.root() / (1.0 - v["beta2"] ** v[STEP]).root() + v["epsilon"]
    return {WEIGHT: weight - v["lr"] / (1.0 - v["beta1"] ** v[STEP]) * (mean / divisor), **states}


def _adagrad_lr_decay(v: Values) -> Next:
    gradient = v[GRADIENT] + v["weight_decay"] * v[WEIGHT]
    total = v["sum"] + gradient * gradient
    lr = v["lr"] / ((v[STEP] - 1.0) * v["lr_decay"] + 1.0)
    return {WEIGHT: v[WEIGHT] - lr * (gradient / (total.root() + v["epsilon"])), "sum": total}


def _rmsprop(v: Values, *, centered: bool, momentum: bool) -> Next:
    gradient = v[GRADIENT] + v["weight_decay"] * v[WEIGHT]
    square = v["decay"] * v["square"] + (1.0 - v["decay"]) * (gradient * gradient)
    states = {"square": square}
    variance = square
    if centered:
        mean = states["mean"] = v["decay"] * v["mean"] + (1.0 - v["decay"]) * gradient
        variance = square - mean * mean
    move = gradient / (variance.root() + v["epsilon"])
    if momentum:
        move = states["velocity"] = v["momentum"] * v["velocity"] + move
    return {WEIGHT: v[WEIGHT] - v["lr"] * move, **states}


_SGD: Final = {"lr": 0.001, "momentum": 0.9, "dampening": 0.0, "weight_decay": 0.0}
_ADAM: Final = {"lr": 0.001, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "weight_decay": 0.0}
_ADAGRAD: Final = {"lr": 0.01, "lr_decay": 0.0, "epsilon": 1e-10, "weight_decay": 0.0}
_RMSPROP: Final = {"lr": 0.01, "decay": 0.99, "epsilon": 1e-8, "weight_decay": 0.0}
_WITH_MOMENTUM: Final = {**_RMSPROP, "momentum": 0.0}

_MOMENTS: Final = ("mean", "variance")

_Variant = tuple[Callable[..., Next], dict[str, bool], Mapping[str, float], tuple[str, ...]]
_VARIANTS: Final[Mapping[str, _Variant]] = MappingProxyType(
    {
        "sgd_dampened": (_sgd_dampened, {}, _SGD, ("velocity",)),
        "adam_l2": (_adam, {"decoupled": False, "amsgrad": False}, _ADAM, _MOMENTS),
        "adam_amsgrad": (_adam, {"decoupled": False, "amsgrad": True}, _ADAM, (*_MOMENTS, "largest")),
        "adamw_amsgrad": (_adam, {"decoupled": True, "amsgrad": True}, _ADAM, (*_MOMENTS, "largest")),
        "adagrad_lr_decay": (_adagrad_lr_decay, {}, _ADAGRAD, ("sum",)),
        "rmsprop_momentum": (_rmsprop, {"centered": False, "momentum": True}, _WITH_MOMENTUM, ("square", "velocity")),
        "rmsprop_centered": (_rmsprop, {"centered": True, "momentum": False}, _RMSPROP, ("square", "mean")),
        "rmsprop_centered_momentum": (
            _rmsprop,
            {"centered": True, "momentum": True},
            _WITH_MOMENTUM,
            ("square", "mean", "velocity"),
        ),
    }
)
VARIANTS: Final = frozenset(_VARIANTS)
"""The rules' names."""


@cache
def variant(name: str) -> RuleGraph:
    """The rule of that name, states starting at 0. Raises KeyError."""
    formula, options, hyper, states = _VARIANTS[name]
    elements, number = TensorType(DType.FLOAT64, ("elements",)), TensorType(DType.FLOAT64, ())
    inputs = [Input(each, elements) for each in (WEIGHT, GRADIENT, *states)]
    inputs += [Input(each, number) for each in (STEP, *hyper)]
    writer = _Writer()
    following = formula({each.name: _Value(writer, each.name) for each in inputs}, **options)
    named = {name: value.name for name, value in following.items()}
    graph = Graph(
        name=name,
        inputs=tuple(inputs),
        parameters=(),
        nodes=tuple(writer.nodes),
        outputs=tuple(named.values()),
        constants=tuple(writer.constants),
    )
    return checked(RuleGraph(name, graph, dict.fromkeys(states, 0.0), dict(hyper), named))
