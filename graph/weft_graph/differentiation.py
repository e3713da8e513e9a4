"""The gradient of a graph: a walk from its outputs back to what is wanted."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, Protocol

import numpy as np

from weft_graph.attributes import as_body
from weft_graph.errors import DTypeError, GraphError, GraphRefusedError, NoGradientError, ShapeError
from weft_graph.infer import Array, Inference
from weft_graph.ir import ONNX_DOMAIN, AttributeValue, Constant, Graph, Input, Node, Subgraph
from weft_graph.names import FreshNames, Names, all_nodes, bodies_of, body_values, drawn_as, gradient_name, repeated
from weft_graph.program import LOSS_SCALE
from weft_graph.schema import BodyDerivation, schema_of
from weft_graph.shapes.gradients import flat
from weft_graph.topological import backward_slice, topological_order
from weft_graph.types import TensorType

# --- Which values depend on which, through floats: forwards from sources, backwards from results, and around loops ----


IsFloat = Callable[[str], bool]


def lead_from(
    nodes: Sequence[Node], sources: Mapping[str, str], again: Mapping[str, Sequence[str]], is_float: IsFloat
) -> dict[str, str]:
    """For each float value that depends on `sources`, what `sources` says of one that it depends on.

    `again` has, for an output of a body, the inputs that get it at the next turn. Nothing leads through an operator of
    steps.
    """
    readers: defaultdict[str, list[int]] = defaultdict(list)
    for index, node in enumerate(nodes):
        if schema_of(node).gradient is not flat:
            for name in node.inputs:
                readers[name].append(index)
    leads: dict[str, str] = {}
    todo, done = list[int](), set[int]()

    def found(first: str, source: str) -> None:
        names = [first]
        while names:
            name = names.pop()
            if name in leads:
                continue
            leads[name] = source
            names.extend(again.get(name, ()))
            for index in readers[name]:
                heapq.heappush(todo, index)

    for name, source in sources.items():
        found(name, source)
    # In the order of the nodes, so that of several sources that of the first input is the one that is named.
    while todo:
        index = heapq.heappop(todo)
        if index in done:
            continue
        done.add(index)
        source = next(leads[name] for name in nodes[index].inputs if name in leads)
        for output in nodes[index].outputs:
            if output and is_float(output):
                found(output, source)
    return leads


def reached_from(
    nodes: Sequence[Node], ends: Iterable[str], before: Mapping[str, str], leads: Mapping[str, str]
) -> set[str]:
    """Of the values that lead to one of `ends`, those in `leads`: where gradients may flow.

    `before` has, for an input of a body, the output that it gets from the turn before.
    """
    makers = {name: node for node in nodes for name in node.outputs if name and schema_of(node).gradient is not flat}
    todo = [name for name in ends if name in leads]
    found = set(todo)
    while todo:
        name = todo.pop()
        others = [] if name not in makers else list(makers[name].inputs)
        if name in before:
            others.append(before[name])
        for other in others:
            if other in leads and other not in found:
                found.add(other)
                todo.append(other)
    return found


# --- A body with its derivative: its own nodes once more, and behind them the backward nodes --------------------------
# Nothing of the way forward is kept but what the body reads: a body's other values are computed again, by nodes that
# draw the same random numbers as those which they repeat.


class Walk(Protocol):
    """What `weft_graph.differentiation` says of the body's nodes once it has gone through them."""

    constants: dict[tuple[str, tuple[int, ...], bytes], Constant]
    leads: dict[str, str]
    gradients: dict[str, str]

    @property
    def nodes(self) -> tuple[Node, ...]: ...

    def zeros(self, source: str, like: str) -> str: ...


@dataclass(frozen=True, slots=True)
class DerivedBody:
    """The BodyDerivation of `weft_graph.schema`: a body whose outputs have the gradients `seeds`."""

    body: Subgraph
    walk: Walk
    seeds: Mapping[int, str]

    def gradient(self, value: str) -> str | None:
        return self.walk.gradients.get(value) if value in self.walk.leads else None

    def zeros(self, value: str) -> str:
        return self.walk.zeros(value, value)

    def reads(self, outputs: Sequence[str]) -> set[str]:
        return backward_slice(self.walk.nodes, outputs)[1]

    def closed(self, inputs: Sequence[str], captured: Sequence[str], outputs: Sequence[str]) -> Subgraph:
        nodes, alive = backward_slice(self.walk.nodes, outputs)
        constants = (*self.body.constants, *self.walk.constants.values())
        return Subgraph(
            tuple(inputs),
            tuple(captured),
            nodes,
            tuple(outputs),
            tuple(constant for constant in constants if constant.name in alive),
        )


def repeat(node: Node, names: FreshNames) -> Node:
    """The node, and those in its bodies, under names of nodes that repeat others."""
    bodies = {
        name: replace(body, nodes=tuple(repeat(inner, names) for inner in body.nodes))
        for name, body in bodies_of(node).items()
    }
    return replace(node, name=repeated(node.name, names), attributes={**node.attributes, **bodies})


def seed_name(node: Node, output: int) -> str:
    """What the gradient of output `output` is called in all bodies of the node; in none of them the name is taken."""
    taken = {name for body in bodies_of(node).values() for name in body_values(body)}
    name = f"weft.gradient:{output}"
    while name in taken:
        name += "+"
    return name


# --- The walk of reverse-mode differentiation through nodes in runnable order: a graph's, or a body's -----------------
# Of the values, only those take part that lead from a source to what is derived, through floats. The walk goes
# through the forward nodes backwards, so a value's gradient is whole before the node that makes the value is reached.


Locate = Callable[[Node], str]
"""The pointer of a forward node in the user's graph."""

ADVICE: Final = "make the parameter not trainable, or stop the gradient before that node (weft.ops.stop_gradient)"


class Backward:
    """One walk, which begins with `run`. Forward nodes are rewritten only to name or to give further outputs.

    `sources` has what errors call each value that gradients are wanted of; `carried`, for an output of a body, the
    inputs that get it at the next turn. `leads` has, for each value that takes part, what errors call the source that
    it leads from; `gradients` what is known so far.
    """

    def __init__(
        self,
        forward: Iterable[Node],
        inference: Inference,
        names: Names,
        *,
        locate: Locate,
        sources: Mapping[str, str],
        carried: Mapping[str, Sequence[str]] = MappingProxyType({}),
    ) -> None:
        self.forward = list(forward)
        self.inference = inference
        self.names = names
        self.locate = locate
        self.backward: list[Node] = []
        self.constants: dict[tuple[str, tuple[int, ...], bytes], Constant] = {}
        self.outputs_of = {node.name: inference.add(node) for node in self.forward}
        self.leads = lead_from(self.forward, sources, carried, self._is_float)
        self.gradients: dict[str, str] = {}

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Forward and backward nodes, in runnable order."""
        return (*self.forward, *self.backward)

    def _is_float(self, value: str) -> bool:
        return self.inference.types[value].dtype.is_float

    def run(self, seeds: Iterable[tuple[str, str]]) -> None:
        """Walks from values with their gradients, `seeds`. Raises NoGradientError at an operator that has none."""
        for value, gradient in seeds:
            self.inference.types[gradient] = self.inference.types[value]
            self.accumulate(None, value, gradient)
        for index in reversed(range(len(self.forward))):
            node = self.forward[index]
            reads = any(name in self.leads for name in node.inputs)
            if reads and any(name in self.gradients for name in node.outputs):
                self._visit(index)

    def _visit(self, index: int) -> None:
        node = self.forward[index]
        gradient_of = schema_of(node).gradient
        blocked = next(self.leads[name] for name in node.inputs if name in self.leads)
        if gradient_of is None:
            raise self._no_gradient(node, f"operator {node.op_type} has no gradient", blocked)
        context = NodeGradient(node, index, self)
        try:
            gradients = gradient_of(context)
        except NoGradientError as error:
            # One that has a place comes from a node in a body of this one.
            raise error if error.pointer else self._no_gradient(node, error.message, blocked) from error
        if len(gradients) != len(node.inputs):
            message = (
                f"node {drawn_as(node.name)!r}: the gradient of {node.op_type} is of {len(gradients)} inputs, and the "
                f"node has {len(node.inputs)}"
            )
            raise GraphError(message, node=drawn_as(node.name))
        for place, (name, gradient) in enumerate(zip(node.inputs, gradients, strict=True)):
            if gradient is not None and context.needs(place):
                self.accumulate(node, name, gradient)

    def _no_gradient(self, node: Node, message: str, parameter: str) -> NoGradientError:
        name = drawn_as(node.name)
        return NoGradientError(
            f"parameter {parameter!r} cannot be trained, its gradient would pass node {name!r}: {message}; {ADVICE}",
            pointer=self.locate(node),
            node=name,
        )

    def accumulate(self, node: Node | None, value: str, gradient: str) -> None:
        """Adds a use's gradient to those of the uses after it, at once, so that one sum is held and not every term."""
        if node is not None:
            _check_like(node, value, self.inference.types[value], self.inference.types[gradient])
        earlier = self.gradients.get(value)
        if earlier is None:
            self.gradients[value] = gradient
        else:
            (self.gradients[value],) = self.emit(value, "Add", (earlier, gradient))

    def emit(
        self,
        source: str,
        op_type: str,
        inputs: Sequence[str],
        attributes: Mapping[str, AttributeValue] | None = None,
        *,
        domain: str = ONNX_DOMAIN,
        outputs: int = 1,
    ) -> tuple[str, ...]:
        """Appends a backward node on behalf of `source`, a forward node or a value, and gives its outputs' names."""
        name = self.names.nodes.fresh(gradient_name(source, op_type))
        values = tuple(self.names.values.fresh(f"{name}:{number}") for number in range(outputs))
        node = Node(op_type, name, tuple(inputs), values, dict(attributes or {}), domain)
        self.inference.add(node)
        self.backward.append(node)
        return values

    def constant(self, array: Array) -> str:
        """The name of a constant of this value; one constant stands for all that are equal to the bit."""
        stored = np.array(array, dtype=array.dtype.newbyteorder("<"), order="C")
        bits = stored.dtype.str, stored.shape, stored.tobytes()
        if bits not in self.constants:
            stored.flags.writeable = False
            self.constants[bits] = Constant(self.names.values.fresh("weft.constant"), stored)
            self.inference.add_constant(self.constants[bits])
        return self.constants[bits].name

    def zeros(self, source: str, like: str) -> str:
        """The name of a value of zeros, of the type of the value `like`."""
        never = self.constant(np.array(False))
        zero = self.constant(np.array(0, dtype=self.inference.types[like].dtype.numpy))
        return self.emit(source, "Where", (never, like, zero))[0]

    def optional_output(self, index: int, output: int) -> str:
        """The name of a forward node's output, which the node is made to name if it does not."""
        node = self.forward[index]
        names = [*node.outputs, *[""] * (output + 1 - len(node.outputs))]
        if not names[output]:
            names[output] = self.names.values.fresh(f"weft.output/{drawn_as(node.name)}:{output}")
            self.inference.types[names[output]] = self.outputs_of[node.name][output]
            self.forward[index] = replace(node, outputs=tuple(names))
        return names[output]

    def extend(self, index: int, attributes: Mapping[str, AttributeValue], count: int) -> tuple[str, ...]:
        """Names of `count` further outputs, which a forward node has with these attributes behind all others."""
        node = self.forward[index]
        had = len(self.outputs_of[node.name])
        names = tuple(
            self.names.values.fresh(f"weft.output/{drawn_as(node.name)}:{had + place}") for place in range(count)
        )
        outputs = (*node.outputs, *[""] * (had - len(node.outputs)), *names)
        self.forward[index] = replace(node, attributes={**node.attributes, **attributes}, outputs=outputs)
        self.outputs_of[node.name] = self.inference.add(self.forward[index])
        return names


def _check_like(node: Node, value: str, expected: TensorType, gradient: TensorType) -> None:
    """A gradient is of its value's type; another one is a defect of the operator, caught before it is run."""
    if not expected.agrees_with(gradient):
        raise GraphError(
            f"node {node.name!r} ({node.op_type}): {value!r} is {expected} and its gradient {gradient}", node=node.name
        )


@dataclass(frozen=True, slots=True)
class NodeGradient:
    """What a schema's `gradient` sees of one node: the GradientContext of `weft_graph.schema`."""

    node: Node
    index: int
    backward: Backward

    def input(self, index: int) -> str:
        return self.node.inputs[index] if index < len(self.node.inputs) else ""

    def output(self, index: int) -> str:
        return self.backward.optional_output(self.index, index)

    def output_type(self, index: int) -> TensorType:
        return self.backward.outputs_of[self.node.name][index]

    def gradient(self, index: int) -> str | None:
        name = self.node.outputs[index] if index < len(self.node.outputs) else ""
        return self.backward.gradients.get(name) if name else None

    def needs(self, index: int) -> bool:
        return self.input(index) in self.backward.leads

    def type_of(self, value: str) -> TensorType:
        return self.backward.inference.types[value]

    def known(self, value: str) -> Array | None:
        return self.backward.inference.known.get(value)

    def attribute(self, name: str) -> AttributeValue | None:
        return schema_of(self.node).attribute(self.node, name)

    def emit(
        self,
        op_type: str,
        inputs: Sequence[str],
        attributes: Mapping[str, AttributeValue] | None = None,
        *,
        domain: str = ONNX_DOMAIN,
        outputs: int = 1,
    ) -> tuple[str, ...]:
        return self.backward.emit(self.node.name, op_type, inputs, attributes, domain=domain, outputs=outputs)

    def constant(self, array: Array) -> str:
        return self.backward.constant(array)

    def zeros(self, like: str) -> str:
        return self.backward.zeros(self.node.name, like)

    def extend(self, attributes: Mapping[str, AttributeValue], outputs: int) -> tuple[str, ...]:
        return self.backward.extend(self.index, attributes, outputs)

    def derive(
        self,
        attribute: str,
        types: Sequence[TensorType],
        seeds: Sequence[int],
        carried: Mapping[int, str],
        *,
        sources: Sequence[str] | None = None,
        may_not_run: bool = False,
    ) -> BodyDerivation:
        outer, body = self.backward, as_body(self.attribute(attribute))
        reads = (*body.inputs, *body.captured)
        inference = Inference(dict(zip(reads, types, strict=True)), body.constants)
        first = len(self.node.inputs) - len(reads)
        given = dict(zip(reads, self.node.inputs[first:] if sources is None else sources, strict=True))
        known = {name: outer.inference.known.get(given[name]) for name in body.captured}
        inference.known.update((name, array) for name, array in known.items() if array is not None)
        place = outer.locate(self.node)
        inside = f"{place}/attributes/{attribute}/nodes"
        places = {drawn_as(node.name): f"{inside}/{index}" if place else "" for index, node in enumerate(body.nodes)}
        again: dict[str, list[str]] = {}
        for output, name in carried.items():
            again.setdefault(body.outputs[output], []).append(name)
        inner = Backward(
            (repeat(node, outer.names.nodes) for node in body.nodes),
            inference,
            Names(FreshNames(body_values(body)), outer.names.nodes),
            locate=lambda node: places[drawn_as(node.name)],
            sources={name: outer.leads[value] for name, value in given.items() if value in outer.leads},
            carried=again,
        )
        before = {name: body.outputs[output] for output, name in carried.items()}
        flowing = reached_from(inner.forward, [body.outputs[output] for output in seeds], before, inner.leads)
        passed = [output for output in seeds if may_not_run and carried.get(output) in inner.leads]
        wanted = [output for output in seeds if body.outputs[output] in flowing or output in passed]
        wanted += [output for output, name in carried.items() if name in flowing and output not in wanted]
        named = {output: seed_name(self.node, output) for output in sorted(wanted)}
        inference.types.update((name, inference.types[body.outputs[output]]) for output, name in named.items())
        inner.run((body.outputs[output], name) for output, name in named.items() if body.outputs[output] in inner.leads)
        return DerivedBody(body, inner, named)


# --- Reverse-mode differentiation of a graph: the backward nodes of a loss, made by walking the schemas' gradients ----
# Of the values, only those take part that lead from a trainable parameter to the loss through floats. The start is
# the input `weft.loss_scale` in the place of 1.


@dataclass(frozen=True, slots=True)
class Differentiated:
    """A graph with its backward nodes, in runnable order, and the name of each trainable parameter's gradient."""

    graph: Graph
    gradients: Mapping[str, str]
    types: Mapping[str, TensorType]


def differentiate(graph: Graph, loss: str, *, source: Graph | None = None) -> Differentiated:
    """Adds to a checked graph the nodes that compute `weft.loss_scale` times the gradient of the value `loss`.

    Errors name and point at what is in `source`, the user's graph, whose parameters stand in the same order; without it
    that is `graph` itself.

    Raises NoGradientError, naming the node and the parameter, where an operator on the way has no gradient, and
    GraphRefusedError where the loss is no float scalar, where it does not depend on a trainable parameter, or where
    there is no trainable parameter.
    """
    source = source or graph
    trained = {
        parameter.name: given.name
        for parameter, given in zip(graph.parameters, source.parameters, strict=True)
        if parameter.trainable
    }
    walk = _walk(graph, source, trained)
    types = walk.inference.types
    _check_loss(loss, types.get(loss))
    if not trained:
        raise GraphRefusedError(f"graph {graph.name!r} has no trainable parameter: there is nothing to train")
    _check_parameters(graph, source, loss, backward_slice(walk.forward, [loss])[1], "does not depend on")
    walk.run([(loss, LOSS_SCALE)])
    _check_parameters(graph, source, loss, walk.gradients, "has no path with a gradient to")
    derived = replace(
        graph,
        inputs=(*graph.inputs, Input(LOSS_SCALE, types[LOSS_SCALE])),
        constants=(*graph.constants, *walk.constants.values()),
        nodes=walk.nodes,
    )
    gradients = {name: walk.gradients[name] for name in trained}
    return Differentiated(derived, MappingProxyType(gradients), MappingProxyType(types))


def _walk(graph: Graph, source: Graph, trained: Mapping[str, str]) -> Backward:
    given = {input_.name: input_.type for input_ in graph.inputs}
    given.update((parameter.name, parameter.type) for parameter in graph.parameters)

    def locate(node: Node) -> str:
        # A branch that is always taken stands in its node's place, but in the user's graph it is a body.
        return next((place for theirs, place in all_nodes(source.nodes) if theirs.name == node.name), "")

    inference = Inference(given, graph.constants)
    return Backward(
        topological_order(graph.nodes), inference, Names.of(graph, LOSS_SCALE), locate=locate, sources=trained
    )


def _check_loss(loss: str, type_: TensorType | None) -> None:
    if type_ is None:
        raise GraphRefusedError(f"loss {loss!r} is a value that nothing defines", node=loss)
    if not type_.dtype.is_float:
        raise DTypeError(f"loss {loss!r} is {type_}; a loss is a float scalar", node=loss)
    if type_.rank:
        raise ShapeError(f"loss {loss!r} is {type_}; a loss is a float scalar", node=loss)


def _check_parameters(graph: Graph, source: Graph, loss: str, reached: Collection[str], relation: str) -> None:
    for index, (parameter, given) in enumerate(zip(graph.parameters, source.parameters, strict=True)):
        if parameter.trainable and parameter.name not in reached:
            raise GraphRefusedError(
                f"loss {loss!r} {relation} parameter {given.name!r}, which would never be trained; "
                "remove it or make it not trainable",
                pointer=f"/parameters/{index}",
                node=given.name,
            )
