"""Runs a graph here and now, node by node: what the SDK calls through the entry points `weft.evaluators`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from weft_graph.check import check
from weft_graph.differentiation import differentiate
from weft_graph.infer import infer
from weft_graph.ir import GIVEN, Graph, Parameter
from weft_graph.program import LOSS_SCALE
from weft_graph.topological import topological_order
from weft_graph.types import BATCH, TensorType, array_text
from weft_kernels.initializers import first_values
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.run import run_nodes


class FeedError(ValueError):
    """What is fed does not fit the graph; the message names the input or parameter and shows both sides."""


def evaluate(
    graph: Graph, feeds: Mapping[str, Array], *, seed: int = 0, parameters: Mapping[str, Array] | None = None
) -> dict[str, Array]:
    """The graph's outputs by name, arrays that the caller owns.

    `feeds` has an array for every input. A parameter that `parameters` leaves out has its first value with that seed.
    Random numbers are those of step 0 of a job with that seed. Nothing that is given is written.

    Raises FeedError for what does not fit, GraphError where the graph is not legal, KernelError where a node cannot
    take what it reads.
    """
    check(graph)
    dims = _checked_feeds(graph, feeds)
    types = infer(graph, dims)
    values: dict[str, Array] = {name: np.asarray(array) for name, array in feeds.items()}
    values.update(_parameter_values(graph, parameters or {}, seed))
    values.update((constant.name, constant.array) for constant in graph.constants)
    context = KernelContext(node="", seed=seed, samples=dims.get(BATCH))
    run_nodes(context, topological_order(graph.nodes), values, keep=graph.outputs, types=types)
    return {name: np.array(values[name], order="C") for name in graph.outputs}


def gradients(
    graph: Graph, loss: str, feeds: Mapping[str, Array], *, parameters: Mapping[str, Array]
) -> tuple[dict[str, Array], dict[str, Array]]:
    """(outputs by name, gradients of the output `loss`, a scalar, by trained parameter): a step without randomness.

    A parameter that `loss` does not depend on has no gradient. Takes and raises what `evaluate` does.
    """
    check(graph)
    dims = _checked_feeds(graph, feeds)
    derived = differentiate(graph, loss)
    values: dict[str, Array] = {name: np.asarray(array) for name, array in feeds.items()}
    values.update(_parameter_values(graph, parameters, seed=0))
    values.update((constant.name, constant.array) for constant in derived.graph.constants)
    types = infer(graph, dims)
    values[LOSS_SCALE] = np.ones((), types[loss].dtype.numpy)
    samples = dims.get(BATCH, next((array.shape[0] for array in feeds.values() if np.ndim(array)), None))
    wanted = [*graph.outputs, *derived.gradients.values()]
    nodes = topological_order(derived.graph.nodes)
    run_nodes(KernelContext(node="", samples=samples), nodes, values, keep=wanted)
    found = {name: values[value] for name, value in derived.gradients.items()}
    return {name: values[name] for name in graph.outputs}, found


def _checked_feeds(graph: Graph, feeds: Mapping[str, Array]) -> dict[str, int]:
    """The sizes of the symbolic dimensions, once every input has an array that fits it."""
    inputs = {input_.name: input_.type for input_ in graph.inputs}
    _check_names("input", set(inputs), set(feeds))
    for missing in sorted(inputs.keys() - feeds.keys()):
        raise FeedError(f"input {missing!r} is {inputs[missing]}, and nothing is fed to it")
    dims: dict[str, int] = {}
    source: dict[str, str] = {}
    for name, type_ in inputs.items():
        array = np.asarray(feeds[name])
        _check_type("input", name, type_, array)
        for dim, size in zip(type_.shape, array.shape, strict=True):
            if isinstance(dim, str) and dims.setdefault(dim, size) != size:
                raise FeedError(
                    f"dimension {dim!r} is {size} in input {name!r} ({type_}), "
                    f"and {dims[dim]} in input {source[dim]!r} ({inputs[source[dim]]})"
                )
            source.setdefault(str(dim), name)
    return dims


def _parameter_values(graph: Graph, given: Mapping[str, Array], seed: int) -> dict[str, Array]:
    _check_names("parameter", {parameter.name for parameter in graph.parameters}, set(given))
    values: dict[str, Array] = {}
    for parameter in graph.parameters:
        if parameter.name in given:
            values[parameter.name] = np.asarray(given[parameter.name])
            _check_type("parameter", parameter.name, parameter.type, values[parameter.name])
        else:
            values[parameter.name] = _first_value(parameter, seed)
    return values


def _first_value(parameter: Parameter, seed: int) -> Array:
    type_ = parameter.type
    if parameter.initializer.op_type == GIVEN:
        raise FeedError(f"parameter {parameter.name!r} is {type_} and has no first value of its own; give it one")
    values = first_values(
        parameter.initializer, seed=seed, key=parameter.name, start=0, stop=type_.size, dtype=type_.dtype.numpy
    )
    return values.reshape(type_.static_shape)


def _check_names(kind: str, known: set[str], given: set[str]) -> None:
    for name in sorted(given - known):
        raise FeedError(f"the graph has no {kind} {name!r}; it has {', '.join(sorted(known)) or 'none'}")


def _check_type(kind: str, name: str, type_: TensorType, array: Array) -> None:
    fits = array.ndim == type_.rank and all(
        isinstance(dim, str) or dim == size for dim, size in zip(type_.shape, array.shape, strict=True)
    )
    if not fits or array.dtype != type_.dtype.numpy:
        raise FeedError(f"{kind} {name!r} is {type_}, and {array_text(array)} is fed to it")
