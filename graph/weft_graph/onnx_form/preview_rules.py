"""Models that hold their own training step: what of it is the model, and which of weft's rules the rest is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import onnx

from weft_graph.limits import GRAPH_LIMITS
from weft_graph.onnx_form.attributes import attribute_values
from weft_graph.onnx_form.errors import OnnxError
from weft_graph.onnx_form.imported import TrainingStep
from weft_graph.onnx_form.preview_optimizers import PREVIEW_DOMAIN, STATES
from weft_graph.onnx_form.tensors import Tensors
from weft_graph.onnx_form.text import text

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


def _adam(node: onnx.NodeProto, given: _Numbers) -> tuple[str, dict[str, float]]:
    """ONNX adds epsilon before the correction of the first steps, weft after it: at step t ONNX's counts as
    epsilon / sqrt(1 - beta2^t) would here. Where gradients are much larger than that, both move alike; where they are
    much smaller, weft moves 1 / sqrt(1 - beta2^t) times as far: 31.6 at step 1 with beta2 0.999, 1.26 at step 1000.
    """
    _must_be(node, given, (("norm_coefficient", 0.0), ("norm_coefficient_post", 0.0)))
    numbers = (("beta1", "alpha", 0.9), ("beta2", "beta", 0.999), ("epsilon", "epsilon", 1e-6))
    return "adam", {ours: float(given.get(theirs, default)) for ours, theirs, default in numbers}


def _adagrad(node: onnx.NodeProto, given: _Numbers) -> tuple[str, dict[str, float]]:
    _must_be(node, given, (("decay_factor", 0.0),))
    return "adagrad", {
        "epsilon": float(given.get("epsilon", 1e-6)),
        "weight_decay": float(given.get("norm_coefficient", 0.0)),
    }


def _momentum(node: onnx.NodeProto, given: _Numbers) -> tuple[str, dict[str, float]]:
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
    "Adam": _adam,
    "Adagrad": _adagrad,
    "Momentum": _momentum,
}
