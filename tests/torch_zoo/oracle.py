"""Outputs and gradients of a module by PyTorch's autograd, and of a graph by weft's kernels, without randomness.

Both sides take the gradients of one scalar: all outputs, each element times a number that follows from its place.
Dropout passes its input on, and what draws samples gives the distribution's mean plus half its deviation.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from torch_zoo.case import Case, Example
from weft_graph.check import check
from weft_graph.differentiation import differentiate
from weft_graph.infer import infer
from weft_graph.ir import Constant, Graph, Node
from weft_graph.onnx_dtypes import NUMBER_OF_DTYPE
from weft_graph.program import LOSS_SCALE
from weft_graph.topological import topological_order
from weft_graph.types import DType, TensorType
from weft_kernels.kernel import KernelContext
from weft_kernels.run import run_nodes

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Found:
    """Outputs in order, and gradients by the parameter's name."""

    outputs: list[Array]
    gradients: dict[str, Array]


def grown(example: Example) -> Example:
    """The example with one more sample, the first one once again."""

    def more(value: Any) -> Any:
        return torch.cat([value, value[:1]]) if isinstance(value, Tensor) and value.dim() else value

    if isinstance(example, dict):
        return {name: more(value) for name, value in example.items()}
    return tuple(more(value) for value in example)


# --- PyTorch's side ------------------------------------------------------------------------------------------------


def by_autograd(case: Case, example: Example) -> Found:
    """What the module computes as its user left it, training but for what is held in `eval()`."""
    module = case.module()
    named = {name: each for name, each in module.named_parameters() if each.requires_grad}
    args, kwargs = ((), example) if isinstance(example, dict) else (example, {})
    with still(module):
        outputs = [each for each in tree_leaves(module(*args, **kwargs)) if isinstance(each, Tensor)]
        scalar = torch.zeros((), dtype=case.dtype)
        for output in outputs:
            if output.is_floating_point():
                scalar = scalar + (output.reshape(-1).to(case.dtype) * _weights(output.numel(), case.dtype)).sum()
        found = torch.autograd.grad(scalar, list(named.values()), allow_unused=True)
    gradients = {name: each for name, each in zip(named, found, strict=True) if each is not None}
    dense = {name: each.to_dense() if each.is_sparse else each for name, each in gradients.items()}
    return Found([each.detach().numpy() for each in outputs], {name: each.numpy() for name, each in dense.items()})


def own_names(module: nn.Module) -> dict[str, str]:
    """The first name of each parameter by all of its names: a tied one has several."""
    first: dict[int, str] = {}
    return {name: first.setdefault(id(value), name) for name, value in module.named_parameters(remove_duplicate=False)}


def _weights(count: int, dtype: torch.dtype) -> Tensor:
    return torch.sin(1 + _STRIDE * torch.arange(count, dtype=dtype))


_STRIDE = 2.6180339887
"""Places of elements are this far apart on the circle: no two of a few thousand are alike."""

_DROPS = re.compile(r"Drop(out|Path)|StochasticDepth")


@contextmanager
def still(module: nn.Module) -> Iterator[None]:
    """Switches randomness off: modules that drop are in evaluation, and what is drawn is its mean or near it."""
    dropping = [each for each in module.modules() if _DROPS.search(type(each).__name__) and each.training]
    for each in dropping:
        each.training = False
    try:
        with _Still():
            yield
    finally:
        for each in dropping:
            each.training = True


class _Still(TorchDispatchMode):
    """A mask that is kept with probability p is p everywhere, so that it is 1 once it is divided by p."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func._schema.name.removeprefix("aten::")
        if name in {"bernoulli_", "bernoulli"}:
            probability = args[1] if len(args) > 1 else (kwargs or {}).get("p", args[0])
            return result.copy_(torch.as_tensor(probability, dtype=result.dtype).expand_as(result))
        if name in {"randn", "randn_like", "normal_"}:
            given = args[1:3] if name == "normal_" else ()
            mean, deviation = (*given, *(0.0, 1.0)[len(given) :])
            return result.fill_(mean + deviation / 2)
        if name in {"rand", "rand_like"}:
            return result.fill_(0.5)
        if name == "uniform_":
            low, high = args[1:3] if len(args) > 2 else (0.0, 1.0)
            return result.fill_((low + high) / 2)
        return result


# --- weft's side ---------------------------------------------------------------------------------------------------


def by_kernels(graph: Graph, parameters: Mapping[str, Array], module: nn.Module, example: Example) -> Found:
    """What the graph computes in training. Inputs are matched by the names of the arguments of `forward`."""
    feeds = _feeds(module, example)
    missing = [each.name for each in graph.inputs if each.name not in feeds]
    assert not missing, f"the graph has inputs {missing}, the module takes {list(feeds)}"
    whole, loss = _with_scalar(_still_graph(graph))
    check(whole)
    derived = differentiate(whole, loss)
    values = {each.name: feeds[each.name] for each in graph.inputs}
    values.update(parameters)
    values.update((constant.name, constant.array) for constant in derived.graph.constants)
    values[LOSS_SCALE] = np.ones((), infer(whole)[loss].dtype.numpy)
    samples = next(array.shape[0] for array in feeds.values() if array.ndim)
    wanted = [*graph.outputs, *derived.gradients.values()]
    run_nodes(KernelContext("", samples=samples), topological_order(derived.graph.nodes), values, keep=wanted)
    gradients = {name: values[value] for name, value in derived.gradients.items()}
    return Found([values[name] for name in graph.outputs], gradients)


def _feeds(module: nn.Module, example: Example) -> dict[str, Array]:
    if not isinstance(example, dict):
        example = inspect.signature(module.forward).bind(*example).arguments
    return {name: value.numpy() for name, value in example.items() if isinstance(value, Tensor)}


def _with_scalar(graph: Graph) -> tuple[Graph, str]:
    """The graph with the sum of its outputs' elements, each times a number that follows from its place."""
    types = infer(graph)
    wide = DType.FLOAT64 if any(types[name].dtype is DType.FLOAT64 for name in graph.outputs) else DType.FLOAT32
    to_wide = {"to": NUMBER_OF_DTYPE[wide]}
    nodes, parts = list(graph.nodes), []
    constants = [
        Constant("zoo/first", np.asarray(0)),
        Constant("zoo/step", np.asarray(1)),
        Constant("zoo/flat", np.asarray([-1])),
        Constant("zoo/start", np.asarray(1, wide.numpy)),
        Constant("zoo/stride", np.asarray(_STRIDE, wide.numpy)),
    ]
    for index, name in enumerate(graph.outputs):
        if not types[name].dtype.is_float:
            continue
        stem = f"zoo/{index}"
        for op_type, inputs, what, attributes in (
            ("Size", (name,), "size", {}),
            ("Range", ("zoo/first", f"{stem}/size", "zoo/step"), "places", {}),
            ("Cast", (f"{stem}/places",), "numbers", to_wide),
            ("Mul", (f"{stem}/numbers", "zoo/stride"), "angles", {}),
            ("Add", (f"{stem}/angles", "zoo/start"), "turned", {}),
            ("Sin", (f"{stem}/turned",), "weights", {}),
            ("Reshape", (name, "zoo/flat"), "elements", {}),
            ("Cast", (f"{stem}/elements",), "wide", to_wide),
            ("Mul", (f"{stem}/wide", f"{stem}/weights"), "weighted", {}),
            ("ReduceSum", (f"{stem}/weighted",), "part", {"keepdims": 0}),
        ):
            nodes.append(Node(op_type, f"{stem}/{what}", inputs, (f"{stem}/{what}",), attributes))
        parts.append(f"{stem}/part")
    nodes.append(Node("Sum", "zoo/scalar", tuple(parts), ("zoo/scalar",)))
    outputs = (*graph.outputs, "zoo/scalar")
    return replace(graph, nodes=tuple(nodes), constants=(*graph.constants, *constants), outputs=outputs), "zoo/scalar"


def _still_graph(graph: Graph) -> Graph:
    types = infer(graph)
    nodes: list[Node] = []
    for node in graph.nodes:
        nodes.extend(_still_nodes(node, types))
    return replace(graph, nodes=tuple(nodes))


def _still_nodes(node: Node, types: Mapping[str, TensorType]) -> list[Node]:
    if node.domain or node.op_type not in {"Dropout", *_MIDDLE}:
        return [node]
    if node.op_type == "Dropout":
        return [replace(node, inputs=node.inputs[:1])]
    middle = _MIDDLE[node.op_type](node.attributes)
    (output,) = node.outputs
    filled = {"value": middle, "dtype": NUMBER_OF_DTYPE[types[output].dtype]}
    shape = f"zoo/shape of {output}"
    assert node.inputs, f"{node.op_type} {node.name!r} draws samples of a fixed shape"
    return [
        Node("Shape", shape, node.inputs, (shape,)),
        Node("ConstantOfShape", node.name, (shape,), (output,), filled),
    ]


def _of_normal(attributes: Mapping[str, Any]) -> float:
    return float(attributes.get("mean", 0.0) + attributes.get("scale", 1.0) / 2)


def _of_uniform(attributes: Mapping[str, Any]) -> float:
    return float(attributes.get("low", 0.0) + attributes.get("high", 1.0)) / 2


_MIDDLE = {
    "RandomNormal": _of_normal,
    "RandomNormalLike": _of_normal,
    "RandomUniform": _of_uniform,
    "RandomUniformLike": _of_uniform,
}
