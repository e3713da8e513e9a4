"""Expressions computed here and now, by an evaluator that is installed.

An evaluator is registered in the entry-point group `weft.evaluators` and called as
`evaluate(graph, feeds, parameters=..., seed=...)`; it gives the outputs by name.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import numpy as np

from weft.collect import Collected, collect
from weft.errors import ArgumentError, EvaluatorError, FeedError
from weft.records import Array, Value
from weft_graph.errors import DTypeError, GraphRefusedError
from weft_graph.ir import Graph
from weft_graph.names import RESERVED_PREFIX
from weft_graph.passes.inference_mode import to_inference
from weft_graph.types import TensorType

GROUP = "weft.evaluators"
PREFERRED = "numpy"
"""The reference; another one is taken only where this one is missing."""

INSTALL = "pip install 'weft[cluster]'"

Feeds = Mapping[str | Value, Any]
"""Values of inputs, by name or by the input's expression."""

Evaluator = Callable[..., Mapping[str, Array]]


def evaluate(
    outputs: Sequence[Value],
    feeds: Feeds,
    *,
    parameters: Mapping[str, Any] | None = None,
    seed: int = 0,
    training: bool = False,
    found: Iterable[EntryPoint] | None = None,
) -> tuple[Array, ...]:
    """The outputs' values: of inference, or of a training step. `found` replaces the installed evaluators.

    A feed becomes an array of its input's element type where that loses no more than precision. Raises ArgumentError
    for what is no mapping, GraphRefusedError for a missing or unknown feed or a missing parameter, DTypeError for one
    of another kind, FeedError for one of another shape, EvaluatorError where nothing can evaluate.
    """
    _check_mappings(feeds, parameters)
    collected = collect(outputs, "expression")
    fed = _fed(collected, feeds)
    # What a model brought along is there also where other parameters draw their first values.
    kept = (collected.values or None) if parameters is None else _kept(collected, parameters)
    evaluator = _evaluator(entry_points(group=GROUP) if found is None else found)
    graph = collected.graph if training else _inference(collected.graph)
    try:
        values = evaluator(graph, fed, parameters=kept, seed=seed)
    except ValueError as error:
        raise FeedError(str(error)) from None  # the evaluator's word for a shape that does not fit; it says all
    return tuple(values[name] for name in collected.outputs)


def run_graph(
    graph: Graph, feeds: Mapping[str, Array], parameters: Mapping[str, Array] | None = None
) -> Mapping[str, Array]:
    """A graph's outputs by name. Raises EvaluatorError where nothing can evaluate."""
    return _evaluator(entry_points(group=GROUP))(graph, feeds, parameters=parameters)


def _check_mappings(feeds: object, parameters: object) -> None:
    if not isinstance(feeds, Mapping):
        raise ArgumentError(f'feeds are arrays by the input\'s name, such as {{"x": ...}}, not {_kind(feeds)}')
    if isinstance(parameters, str | os.PathLike):
        raise ArgumentError(
            f"parameters are arrays by name, not the name of a file: parameters=weft.load({os.fspath(parameters)!r})"
        )
    if parameters is not None and not isinstance(parameters, Mapping):
        raise ArgumentError(f"parameters are arrays by name, as job.values() brings them, not {_kind(parameters)}")


def _kind(value: object) -> str:
    shape = getattr(value, "shape", None)
    return type(value).__name__ if shape is None else f"{type(value).__name__} of shape {shape}"


def _inference(graph: Graph) -> Graph:
    """The graph as evaluation runs it. Nodes that the pass added are named as what they write, as are all others."""
    nodes = tuple(
        replace(node, name=node.outputs[0]) if node.name.startswith(RESERVED_PREFIX) else node
        for node in to_inference(graph).nodes
    )
    return replace(graph, nodes=nodes)


def _evaluator(found: Iterable[EntryPoint]) -> Evaluator:
    points = sorted(found, key=lambda point: (point.name != PREFERRED, point.name))
    if not points:
        raise EvaluatorError(f"no evaluator is installed in {GROUP}; install one with: {INSTALL}")
    try:
        evaluator: Evaluator = points[0].load()
    except ImportError as error:
        raise EvaluatorError(f"evaluator {points[0].name!r} lacks {error.name or error}: {INSTALL}") from error
    return evaluator


def _fed(collected: Collected, feeds: Feeds) -> dict[str, Array]:
    types = {input_.name: input_.type for input_ in collected.graph.inputs}
    named: dict[str, Any] = {}
    for key, value in feeds.items():
        name = key if isinstance(key, str) else collected.names.get(key.record, ("",))[0]
        if name not in types:
            shown = repr(name or key)
            raise GraphRefusedError(f"{shown} is no input of this graph; its inputs are {_listed(types)}", node=name)
        named[name] = _cast(f"feed {name!r}", types[name], value)
    missing = [name for name in types if name not in named]
    if missing:
        raise GraphRefusedError(f"nothing is fed to {_listed(missing)}", node=missing[0])
    return named


def _kept(collected: Collected, parameters: Mapping[str, Any]) -> dict[str, Array]:
    """The values that the graph has use for; the parameters of a larger graph may be given."""
    types = {parameter.name: parameter.type for parameter in collected.graph.parameters}
    missing = [name for name in types if name not in parameters]
    if missing:
        raise GraphRefusedError(
            f"no value is given for {_listed(missing)}; given are {_listed(parameters)}", node=missing[0]
        )
    return {name: _cast(f"parameter {name!r}", type_, parameters[name]) for name, type_ in types.items()}


def _cast(what: str, type_: TensorType, value: Any) -> Array:
    """`value` as an array of the type's elements; the evaluator checks its shape."""
    array = np.asarray(value)
    if not np.can_cast(array.dtype, type_.dtype.numpy, casting="same_kind"):
        raise DTypeError(f"{what} is {array.dtype}, and takes {type_}")
    return array.astype(type_.dtype.numpy, order="C", copy=False)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names)) or "none"
