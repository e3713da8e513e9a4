"""Optimizers of the domain `ai.onnx.preview.training`, written out in ONNX's plain operators.

As the operators' specification has them. For training they become rules: see `weft_graph.onnx_form.preview_rules`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from weft_graph.ir import Node
from weft_graph.onnx_form.draft import Draft
from weft_graph.onnx_form.versions.form import Older

PREVIEW_DOMAIN: Final = "ai.onnx.preview.training"


@dataclass(frozen=True, slots=True)
class _Step:
    """One tensor's update: what it reads by the specification's letters, and how its formula is written down."""

    old: Older
    rate: str
    count: str
    x: str
    gradient: str
    states: tuple[str, ...]

    def number(self, name: str, default: float) -> str:
        """An attribute as a constant of the tensor's type."""
        return self.constant(self.old.number(name, default), name)

    def constant(self, number: float, word: str) -> str:
        return self.old.scalar_like(number, self.x, word)

    def add(self, a: str, b: str) -> str:
        return self.old.emit("Add", a, b)

    def sub(self, a: str, b: str) -> str:
        return self.old.emit("Sub", a, b)

    def mul(self, a: str, b: str) -> str:
        return self.old.emit("Mul", a, b)

    def div(self, a: str, b: str) -> str:
        return self.old.emit("Div", a, b)

    def is_later(self) -> str:
        """Whether an update was made before: T > 0."""
        return self.old.emit("Greater", self.count, self.constant(0.0, "zero"))

    def regularized(self) -> str:
        """The gradient of the loss with norm_coefficient / 2 times the tensor's square."""
        return self.add(self.mul(self.number("norm_coefficient", 0.0), self.x), self.gradient)


def _adam(step: _Step) -> list[str]:
    gradient, one = step.regularized(), step.constant(1.0, "one")
    alpha, beta = step.number("alpha", 0.9), step.number("beta", 0.999)
    mean = step.add(step.mul(alpha, step.states[0]), step.mul(step.sub(one, alpha), gradient))
    square = step.mul(gradient, gradient)
    variance = step.add(step.mul(beta, step.states[1]), step.mul(step.sub(one, beta), square))
    root = step.add(step.old.emit("Sqrt", variance), step.number("epsilon", 1e-6))
    fading = [step.sub(one, step.old.emit("Pow", factor, step.count)) for factor in (alpha, beta)]
    corrected = step.div(step.mul(step.rate, step.old.emit("Sqrt", fading[1])), fading[0])
    rate = step.old.emit("Where", step.is_later(), corrected, step.rate)
    moved = step.sub(step.x, step.div(step.mul(rate, mean), root))
    return [step.mul(step.sub(one, step.number("norm_coefficient_post", 0.0)), moved), mean, variance]


def _adagrad(step: _Step) -> list[str]:
    gradient = step.regularized()
    slowing = step.add(step.constant(1.0, "one"), step.mul(step.count, step.number("decay_factor", 0.0)))
    total = step.add(step.states[0], step.mul(gradient, gradient))
    root = step.add(step.old.emit("Sqrt", total), step.number("epsilon", 1e-6))
    return [step.sub(step.x, step.div(step.mul(step.div(step.rate, slowing), gradient), root)), total]


def _momentum(step: _Step) -> list[str]:
    gradient, one = step.regularized(), step.constant(1.0, "one")
    alpha = step.number("alpha", 0.0)
    beta = step.old.emit("Where", step.is_later(), step.number("beta", 1.0), one)
    velocity = step.add(step.mul(alpha, step.states[0]), step.mul(beta, gradient))
    mode = step.old.attribute("mode")
    if mode not in {"standard", "nesterov"}:
        raise step.old.refusal(f"mode {mode!r} is neither 'standard' nor 'nesterov'")
    direction = velocity if mode == "standard" else step.add(gradient, step.mul(alpha, velocity))
    return [step.sub(step.x, step.mul(step.rate, direction)), velocity]


STATES: Final[Mapping[str, int]] = {"Adam": 2, "Adagrad": 1, "Momentum": 1}
"""How many arrays each keeps beside a tensor."""

_FORMULAS: Final[Mapping[str, Callable[[_Step], list[str]]]] = {
    "Adam": _adam,
    "Adagrad": _adagrad,
    "Momentum": _momentum,
}


def add_optimizer(draft: Draft, node: Node) -> None:
    """Adds the updates of all tensors of the node. Its inputs are the rate, the count of updates, then all tensors, all
    gradients and all states of one kind after the other. Raises OnnxError, naming the node."""
    old = Older(node, draft, 1)
    kinds = 2 + STATES[node.op_type]
    count = (len(node.inputs) - 2) // kinds
    if count < 1 or len(node.inputs) != 2 + kinds * count or len(node.outputs) != (kinds - 1) * count:
        raise old.refusal(f"it has {len(node.inputs)} inputs and {len(node.outputs)} outputs")
    groups = [node.inputs[2 + kind * count : 2 + (kind + 1) * count] for kind in range(kinds)]
    for place, (x, gradient, *states) in enumerate(zip(*groups, strict=True)):
        rate, turn = (old.emit("CastLike", value, x) for value in node.inputs[:2])
        results = _FORMULAS[node.op_type](_Step(old, rate, turn, x, gradient, tuple(states)))
        for kind, result in enumerate(results):
            output = node.outputs[kind * count + place]
            if output:
                draft.append(old.then("Identity", (result,), output))
