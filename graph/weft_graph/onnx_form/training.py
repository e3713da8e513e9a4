"""ONNX's preview of training: gradients, optimizers and the rules that they become."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Final

import numpy as np
import onnx

from weft_graph.differentiation import Backward
from weft_graph.infer import Inference
from weft_graph.ir import ONNX_DOMAIN, Node
from weft_graph.limits import GRAPH_LIMITS
from weft_graph.names import FreshNames, Names
from weft_graph.onnx_dtypes import NUMBER_OF_DTYPE
from weft_graph.onnx_form.attributes import attribute_values
from weft_graph.onnx_form.draft import Draft, Frame, Shared
from weft_graph.onnx_form.errors import OnnxError, ReadOptions, TrainingStep, text
from weft_graph.onnx_form.old_forms import Older
from weft_graph.onnx_form.tensors import Tensors

# --- Optimizers of the domain `ai.onnx.preview.training`, written out in ONNX's plain operators -----------------------
# As the operators' specification has them. For training they become rules: see `weft_graph.onnx_form.training`.


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


# --- Gradient of the domain `ai.onnx.preview.training`: the backward nodes of what it names, in its place -------------


class _ReadersNames(FreshNames):
    """Names for a graph that a user may submit: the differentiation's own begin with what is the converter's."""

    def __init__(self, shared: Shared, *, of_nodes: bool) -> None:
        super().__init__(())
        self._make = shared.node_name if of_nodes else shared.value_name

    def fresh(self, stem: str) -> str:
        return self._make(stem)


def add_gradient(draft: Draft, frame: Frame, node: Node) -> None:
    """Adds nodes that give, for each of `xs`, the gradient of the sum of `y`'s elements where `xs` and `zs` have the
    values of the node's inputs. Raises OnnxError, naming the node, and NoGradientError."""
    old = Older(node, draft, 1)
    where = f"node {node.name!r} (Gradient)"
    xs, zs = ([frame.tensor(name, where) for name in _texts(old, word)] for word in ("xs", "zs"))
    y = frame.tensor(str(old.attribute("y", "")), where)
    if not y or len(node.inputs) != len(xs) + len(zs) or len(node.outputs) > len(xs):
        raise old.refusal("its inputs are not those that `xs` and `zs` name, or `y` is missing")
    forward, y = _forward(old, [*xs, *zs], y)
    given = dict(zip([*xs, *zs], node.inputs, strict=True))
    walk = _walked(old, forward, [given[x] for x in xs], y)
    rewritten = {made.name: made for made in walk.forward}
    draft.nodes[:] = [rewritten.get(known.name, known) for known in draft.nodes]
    gradients = [walk.gradients.get(given[x]) or walk.zeros(node.name, given[x]) for x in xs]
    for constant in walk.constants.values():
        draft.keep(constant.name, constant.array)
    draft.nodes.extend(walk.backward)
    for gradient, output in zip(gradients, node.outputs, strict=False):
        if output:
            draft.append(old.then("Identity", (gradient,), output))


def _texts(old: Older, word: str) -> tuple[str, ...]:
    value = old.attribute(word, ())
    if not isinstance(value, tuple):
        raise old.refusal(f"attribute {word!r} is no list of names")
    return tuple(str(item) for item in value)


def _forward(old: Older, named: Sequence[str], y: str) -> tuple[list[Node], str]:
    """The nodes between the named values and `y`; where other values are given for them, copies that read those."""
    needed, found = {y}, []
    for node in reversed(old.draft.nodes):
        if any(output in needed and output not in named for output in node.outputs):
            needed.update(node.inputs)
            found.append(node)
    found.reverse()
    renamed = {name: given for name, given in zip(named, old.node.inputs, strict=True) if name != given}
    if not renamed:
        return found, y
    copies: list[Node] = []
    for node in found:
        renamed.update((output, old.value(output)) for output in node.outputs if output)
        inputs = tuple(renamed.get(name, name) for name in node.inputs)
        outputs = tuple(renamed.get(name, name) for name in node.outputs)
        name = old.draft.shared.node_name(f"{old.node.name}/{node.name}")
        copies.append(replace(node, name=name, inputs=inputs, outputs=outputs))
    old.draft.nodes.extend(copies)
    return copies, renamed.get(y, y)


def _walked(old: Older, forward: Sequence[Node], xs: Sequence[str], y: str) -> Backward:
    """The walk from `y`, whose elements' gradients are ones."""
    draft = old.draft
    read = {name for node in forward for name in node.inputs if name}.union([y], xs)
    made = {name for node in forward for name in node.outputs}
    inference = Inference({})
    for name in sorted(read - made):
        type_ = draft.type_of(name)
        if type_ is None:
            raise old.refusal(f"the type of {name!r} is not known")
        inference.types[name] = type_
        value = draft.value_of(name)
        if value is not None:
            inference.known[name] = value
    names = Names(_ReadersNames(draft.shared, of_nodes=False), _ReadersNames(draft.shared, of_nodes=True))
    walk = Backward(forward, inference, names, locate=lambda _node: "", sources={x: x for x in xs})
    type_y = inference.types[y]
    if not type_y.dtype.is_float:
        raise old.refusal(f"{y!r} is {type_y}, and no float")
    shape = old.emit("Shape", y)
    seed = old.emit("ConstantOfShape", shape, value=1.0, dtype=NUMBER_OF_DTYPE[type_y.dtype])
    walk.run([(y, seed)])
    return walk


# --- Models that hold their own training step: what of it is the model, and which of weft's rules the rest is ---------


_Numbers = Mapping[str, float | str]


@dataclass(frozen=True, slots=True)
class WithoutTraining:
    """A model without its optimizer and Gradient node, and what these did."""

    model: onnx.ModelProto
    step: TrainingStep


def without_training(model: onnx.ModelProto) -> WithoutTraining | None:
    """Takes the training step out of a model whose optimizer reads gradients that a Gradient node gives; None where it
    has no optimizer.

    The rule's state starts anew, and gradients are those of weft's own differentiation. Raises OnnxError, naming the
    node, where the optimizer is none of weft's rules or not of all Gradient's tensors, and where there are several.
    """
    optimizers = [node for node in model.graph.node if node.domain == PREVIEW_DOMAIN and node.op_type in STATES]
    if not optimizers:
        return None
    if len(optimizers) > 1:
        raise OnnxError(f"node {optimizers[1].name!r}: the model has more than one optimizer", node=optimizers[1].name)
    optimizer = optimizers[0]
    gradient = _gradient_node(model, optimizer)
    lr = _number(model, optimizer.input[0])
    rule, hyper = _RULES[optimizer.op_type](optimizer, _attributes(optimizer))
    loss = next((text(attribute.s, "a loss") for attribute in gradient.attribute if attribute.name == "y"), "")
    if not loss:
        raise OnnxError(f"node {gradient.name!r} (Gradient): attribute 'y' is missing", node=gradient.name)
    cut = onnx.ModelProto()
    cut.CopyFrom(model)
    _remove(cut.graph, {_first_output(optimizer), _first_output(gradient)}, loss)
    return WithoutTraining(cut, TrainingStep(loss, rule, hyper if lr is None else {"lr": lr, **hyper}))


def _first_output(node: onnx.NodeProto) -> str:
    """What tells nodes of one graph apart: each value is given once."""
    return next((str(name) for name in node.output if name), "")


def _gradient_node(model: onnx.ModelProto, optimizer: onnx.NodeProto) -> onnx.NodeProto:
    kinds = 2 + STATES[optimizer.op_type]
    count = (len(optimizer.input) - 2) // kinds
    if count < 1:
        raise OnnxError(f"node {optimizer.name!r} ({optimizer.op_type}): its inputs are missing", node=optimizer.name)
    tensors, gradients = optimizer.input[2 : 2 + count], optimizer.input[2 + count : 2 + 2 * count]
    givers = {out: node for node in model.graph.node for out in node.output if out}
    found = {_first_output(givers[name]): givers[name] for name in gradients if name in givers}
    node: onnx.NodeProto | None = next(iter(found.values()), None)
    where = f"node {optimizer.name!r} ({optimizer.op_type})"
    if len(found) != 1 or node is None or node.op_type != "Gradient" or node.domain != PREVIEW_DOMAIN:
        raise OnnxError(f"{where}: its gradients are not those of one Gradient node", node=optimizer.name)
    of = dict(zip(node.output, node.input, strict=False))
    held = {tensor.name for tensor in model.graph.initializer}
    for tensor, name in zip(tensors, gradients, strict=True):
        if of.get(name) != tensor:
            raise OnnxError(f"{where}: {name!r} is no gradient of {tensor!r}", node=optimizer.name)
        if tensor not in held:
            raise OnnxError(f"{where}: {tensor!r} is no initializer, so it has no first value", node=optimizer.name)
    return node


def _remove(graph: onnx.GraphProto, removed: set[str], loss: str) -> None:
    """Nodes, then what they alone read and gave; the loss becomes the first output."""
    gone = {out for node in graph.node if any(o in removed for o in node.output) for out in node.output}
    nodes = [node for node in graph.node if not any(out in removed for out in node.output)]
    left = {name for node in nodes for name in node.input}
    outputs = [onnx.ValueInfoProto(name=loss), *(o for o in graph.output if o.name not in {*gone, loss})]
    read = {name for node in graph.node for name in node.input}
    inputs = [value for value in graph.input if value.name in left or value.name not in read]
    for field, kept in ((graph.node, nodes), (graph.output, outputs), (graph.input, inputs)):
        whole = [type(item).FromString(item.SerializeToString()) for item in kept]
        del field[:]
        field.extend(whole)


def _attributes(node: onnx.NodeProto) -> dict[str, float | str]:
    found: dict[str, float | str] = {}
    for attribute in node.attribute:
        for name, value in attribute_values(attribute, Tensors(GRAPH_LIMITS), node.name).items():
            if isinstance(value, float | int | str):
                found[name] = value
    return found


def _number(model: onnx.ModelProto, name: str) -> float | None:
    tensor = next((tensor for tensor in model.graph.initializer if tensor.name == name), None)
    if tensor is None:
        return None
    array = Tensors(GRAPH_LIMITS).array(tensor, f"initializer {name!r}")
    return float(array.reshape(-1)[0]) if array.size == 1 else None


def _must_be(node: onnx.NodeProto, given: _Numbers, expected: Iterable[tuple[str, float | str]]) -> None:
    """Raises OnnxError where weft's rule has no such number, and it is not the one that changes nothing."""
    for name, value in expected:
        if given.get(name, value) != value:
            raise OnnxError(
                f"node {node.name!r} ({node.op_type}): {name} is {given[name]!r}, and the rule has {value!r} alone",
                node=node.name,
            )


def _rule_of_adam(node: onnx.NodeProto, given: _Numbers) -> tuple[str, dict[str, float]]:
    """ONNX adds epsilon before the correction of the first steps, weft after it: at step t ONNX's counts as
    epsilon / sqrt(1 - beta2^t) would here. Where gradients are much larger than that, both move alike; where they are
    much smaller, weft moves 1 / sqrt(1 - beta2^t) times as far: 31.6 at step 1 with beta2 0.999, 1.26 at step 1000.
    """
    _must_be(node, given, (("norm_coefficient", 0.0), ("norm_coefficient_post", 0.0)))
    numbers = (("beta1", "alpha", 0.9), ("beta2", "beta", 0.999), ("epsilon", "epsilon", 1e-6))
    return "adam", {ours: float(given.get(theirs, default)) for ours, theirs, default in numbers}


def _rule_of_adagrad(node: onnx.NodeProto, given: _Numbers) -> tuple[str, dict[str, float]]:
    _must_be(node, given, (("decay_factor", 0.0),))
    return "adagrad", {
        "epsilon": float(given.get("epsilon", 1e-6)),
        "weight_decay": float(given.get("norm_coefficient", 0.0)),
    }


def _rule_of_momentum(node: onnx.NodeProto, given: _Numbers) -> tuple[str, dict[str, float]]:
    _must_be(node, given, (("beta", 1.0),))
    mode = given.get("mode", "standard")
    if mode not in {"standard", "nesterov"}:
        raise OnnxError(
            f"node {node.name!r} (Momentum): mode {mode!r} is neither 'standard' nor 'nesterov'", node=node.name
        )
    return "sgd" if mode == "standard" else "nesterov", {
        "momentum": float(given.get("alpha", 0.0)),
        "weight_decay": float(given.get("norm_coefficient", 0.0)),
    }


_RULES: Final[Mapping[str, Callable[..., tuple[str, dict[str, float]]]]] = {
    "Adam": _rule_of_adam,
    "Adagrad": _rule_of_adagrad,
    "Momentum": _rule_of_momentum,
}


def drop_unread_statistics(draft: Draft, outputs: Collection[str]) -> None:
    """The format wants new statistics named where BatchNormalization trains; weft's converter names them itself."""
    read = {name for node in draft.nodes for name in node.inputs}.union(outputs)
    for place, node in enumerate(draft.nodes):
        is_normalization = node.op_type == "BatchNormalization" and node.domain == ONNX_DOMAIN
        if is_normalization and not read.intersection(node.outputs[1:]):
            draft.nodes[place] = replace(node, outputs=node.outputs[:1])


def switch(draft: Draft, initializers: Collection[str], options: ReadOptions, held: Collection[str] = ()) -> list[str]:
    """Rewrites the draft's nodes, and says which of them could not be switched. Those in `held` are frozen too.

    BatchNormalization trains only where its running statistics are `initializers`, so that their new values can be
    kept. Nodes in bodies stay as they are.
    """
    warnings: list[str] = []
    for place, node in enumerate(draft.nodes):
        rewrite = _SWITCHES.get(node.op_type) if node.domain == ONNX_DOMAIN else None
        if rewrite is None:
            continue
        is_frozen = node.name in held or any(fnmatchcase(node.name, pattern) for pattern in options.frozen)
        if is_frozen or options.training:
            draft.nodes[place] = rewrite(draft, node, initializers, not is_frozen, warnings)
    return warnings


def _batch_normalization(
    _draft: Draft, node: Node, initializers: Collection[str], trains: bool, warnings: list[str]
) -> Node:
    if not trains:
        return replace(node, outputs=node.outputs[:1], attributes={**node.attributes, "training_mode": 0})
    if all(name in initializers for name in node.inputs[3:5]):
        return replace(node, attributes={**node.attributes, "training_mode": 1})
    if not node.attributes.get("training_mode", 0):
        warnings.append(
            f"node {node.name!r} (BatchNormalization) stays in inference: its mean and variance are no initializers, "
            "so running statistics could not be kept"
        )
    return node


def _dropout(draft: Draft, node: Node, _initializers: Collection[str], trains: bool, _warnings: list[str]) -> Node:
    """A `training_mode` that is fed stays."""
    given = (*node.inputs, "", "")[:3]
    known = draft.value_of(given[2]) if given[2] else None
    if given[2] and known is None:
        return node
    if not trains:
        return replace(node, inputs=node.inputs[:2])
    if known is not None and known.all():
        return node
    is_on = draft.constant(np.asarray(True), f"{node.name}/training_mode")
    return replace(node, inputs=(*given[:2], is_on))


_SWITCHES: Final[Mapping[str, Callable[[Draft, Node, Collection[str], bool, list[str]], Node]]] = {
    "BatchNormalization": _batch_normalization,
    "Dropout": _dropout,
}
