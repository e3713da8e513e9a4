"""Gradient of the domain `ai.onnx.preview.training`: the backward nodes of what it names, in its place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from weft_graph.differentiation.walk import Backward
from weft_graph.infer import Inference
from weft_graph.ir import Node
from weft_graph.names import FreshNames, Names
from weft_graph.onnx_dtypes import NUMBER_OF_DTYPE
from weft_graph.onnx_form.draft import Draft
from weft_graph.onnx_form.frame import Frame
from weft_graph.onnx_form.shared import Shared
from weft_graph.onnx_form.versions.form import Older


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
