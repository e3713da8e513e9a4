"""Reverse-mode differentiation: the backward nodes of a loss, made by walking the schemas' gradients.

Of the values, only those take part that lead from a trainable parameter to the loss through floats. The walk goes
through the forward nodes backwards, so a value's gradient is whole before the node that makes the value is reached.
The start is the input `weft.loss_scale` in the place of 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from weft_graph.errors import DTypeError, GraphError, GraphRefusedError, NoGradientError, ShapeError
from weft_graph.infer import Array, Inference
from weft_graph.ir import ONNX_DOMAIN, AttributeValue, Constant, Graph, Input, Node
from weft_graph.names import FreshNames, node_definitions, value_definitions
from weft_graph.program import LOSS_SCALE
from weft_graph.schema import schema_of
from weft_graph.topological import topological_order
from weft_graph.types import TensorType


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
    backward = _Backward(graph, loss, source or graph)
    backward.walk()
    return backward.result()


class _Backward:
    """The state of one differentiation. Forward nodes are rewritten only to name optional outputs."""

    def __init__(self, graph: Graph, loss: str, source: Graph) -> None:
        self.graph = graph
        self.source = source
        self.loss = loss
        self.forward = list(topological_order(graph.nodes))
        self.backward: list[Node] = []
        self.constants: dict[tuple[str, tuple[int, ...], bytes], Constant] = {}
        self.values = FreshNames([LOSS_SCALE, *(definition.name for definition in value_definitions(graph))])
        self.node_names = FreshNames(definition.name for definition in node_definitions(graph))
        given = {input_.name: input_.type for input_ in graph.inputs}
        given.update((parameter.name, parameter.type) for parameter in graph.parameters)
        self.inference = Inference(given, graph.constants)
        self.outputs_of = {node.name: self.inference.add(node) for node in self.forward}
        self._check_loss()
        self.leads_from = self._leads_from_parameters()
        self.gradients: dict[str, str] = {}

    def _check_loss(self) -> None:
        type_ = self.inference.types.get(self.loss)
        if type_ is None:
            raise GraphRefusedError(f"loss {self.loss!r} is a value that nothing defines", node=self.loss)
        if not type_.dtype.is_float:
            raise DTypeError(f"loss {self.loss!r} is {type_}; a loss is a float scalar", node=self.loss)
        if type_.rank:
            raise ShapeError(f"loss {self.loss!r} is {type_}; a loss is a float scalar", node=self.loss)

    def _leads_from_parameters(self) -> dict[str, str]:
        """For each float value that depends, through floats, on trainable parameters: the first of these."""
        parameters = zip(self.graph.parameters, self.source.parameters, strict=True)
        leads = {parameter.name: given.name for parameter, given in parameters if parameter.trainable}
        if not leads:
            raise GraphRefusedError(f"graph {self.graph.name!r} has no trainable parameter: there is nothing to train")
        for node in self.forward:
            origin = next((leads[name] for name in node.inputs if name in leads), None)
            if origin is not None:
                leads.update((name, origin) for name in node.outputs if name and self._is_float(name))
        return leads

    def _is_float(self, value: str) -> bool:
        return self.inference.types[value].dtype.is_float

    def walk(self) -> None:
        """Visits the forward nodes backwards. Raises at operators without gradient and at parameters not reached."""
        self._check_parameters(self._ancestors_of_loss(), "does not depend on")
        loss_type = self.inference.types[self.loss]
        self.inference.types[LOSS_SCALE] = loss_type
        self.gradients[self.loss] = LOSS_SCALE
        for index in reversed(range(len(self.forward))):
            node = self.forward[index]
            reads = any(name in self.leads_from for name in node.inputs)
            if reads and any(name in self.gradients for name in node.outputs):
                self._visit(index)
        self._check_parameters(self.gradients, "has no path with a gradient to")

    def _ancestors_of_loss(self) -> set[str]:
        found = {self.loss}
        for node in reversed(self.forward):
            if any(name in found for name in node.outputs):
                found.update(node.inputs)
        return found

    def _check_parameters(self, reached: Mapping[str, str] | set[str], relation: str) -> None:
        parameters = zip(self.graph.parameters, self.source.parameters, strict=True)
        for index, (parameter, given) in enumerate(parameters):
            if parameter.trainable and parameter.name not in reached:
                raise GraphRefusedError(
                    f"loss {self.loss!r} {relation} parameter {given.name!r}, which would never be trained; "
                    "remove it or make it not trainable",
                    pointer=f"/parameters/{index}",
                    node=given.name,
                )

    def _visit(self, index: int) -> None:
        node = self.forward[index]
        gradient_of = schema_of(node).gradient
        blocked = next(self.leads_from[name] for name in node.inputs if name in self.leads_from)
        if gradient_of is None:
            raise self._no_gradient(node, f"operator {node.op_type} has no gradient", blocked)
        context = NodeGradient(node, index, self)
        try:
            gradients = gradient_of(context)
        except NoGradientError as error:
            raise self._no_gradient(node, error.message, blocked) from error
        if len(gradients) != len(node.inputs):
            message = (
                f"node {node.name!r}: the gradient of {node.op_type} is of {len(gradients)} inputs, and the node has "
                f"{len(node.inputs)}"
            )
            raise GraphError(message, node=node.name)
        for place, (name, gradient) in enumerate(zip(node.inputs, gradients, strict=True)):
            if gradient is not None and context.needs(place):
                self._accumulate(node, name, gradient)

    def _no_gradient(self, node: Node, message: str, parameter: str) -> NoGradientError:
        place = next(index for index, given in enumerate(self.source.nodes) if given.name == node.name)
        return NoGradientError(
            f"parameter {parameter!r} cannot be trained, its gradient would pass node {node.name!r}: {message}",
            pointer=f"/nodes/{place}",
            node=node.name,
        )

    def _accumulate(self, node: Node, value: str, gradient: str) -> None:
        """Adds a use's gradient to those of the uses after it, at once, so that one sum is held and not every term."""
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
        name = self.node_names.fresh(f"weft.grad/{source}/{op_type}")
        values = tuple(self.values.fresh(f"{name}:{number}") for number in range(outputs))
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
            self.constants[bits] = Constant(self.values.fresh("weft.constant"), stored)
            self.inference.add_constant(self.constants[bits])
        return self.constants[bits].name

    def optional_output(self, index: int, output: int) -> str:
        """The name of a forward node's output, which the node is made to name if it does not."""
        node = self.forward[index]
        names = [*node.outputs, *[""] * (output + 1 - len(node.outputs))]
        if not names[output]:
            names[output] = self.values.fresh(f"weft.output/{node.name}:{output}")
            self.inference.types[names[output]] = self.outputs_of[node.name][output]
            self.forward[index] = replace(node, outputs=tuple(names))
        return names[output]

    def result(self) -> Differentiated:
        loss_scale = Input(LOSS_SCALE, self.inference.types[LOSS_SCALE])
        graph = replace(
            self.graph,
            inputs=(*self.graph.inputs, loss_scale),
            constants=(*self.graph.constants, *self.constants.values()),
            nodes=(*self.forward, *self.backward),
        )
        trainable = [parameter.name for parameter in self.graph.parameters if parameter.trainable]
        gradients = {name: self.gradients[name] for name in trainable}
        return Differentiated(graph, MappingProxyType(gradients), MappingProxyType(self.inference.types))


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
    backward: _Backward

    def input(self, index: int) -> str:
        return self.node.inputs[index] if index < len(self.node.inputs) else ""

    def output(self, index: int) -> str:
        return self.backward.optional_output(self.index, index)

    def gradient(self, index: int) -> str | None:
        name = self.node.outputs[index] if index < len(self.node.outputs) else ""
        return self.backward.gradients.get(name) if name else None

    def needs(self, index: int) -> bool:
        return self.input(index) in self.backward.leads_from

    def type_of(self, value: str) -> TensorType:
        return self.backward.inference.types[value]

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
