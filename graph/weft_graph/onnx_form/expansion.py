"""How many nodes a model has once each call stands for its function's nodes, told before any of them is read.

A function that is called twice by one that is called twice counts four times: a small file may stand for nodes without
end, and reading them up to the limit takes seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import onnx
from onnx import AttributeProto

from weft_graph.onnx_form.errors import OnnxError
from weft_graph.onnx_form.functions import Functions, call_key

_Key = tuple[str, str, str]


def check_expansion(nodes: Iterable[onnx.NodeProto], functions: Functions, most: int) -> None:
    """Raises OnnxError, naming the call that stands for the most nodes, where there are more than `most` in all."""
    if not functions:
        return
    sizes = _sizes(functions, most)
    total, heaviest, word = 0, 0, ""
    for node in nodes:
        size = _size(node, sizes)
        total += size
        if size > heaviest:
            heaviest, word = size, node.name or node.op_type
    if total > most:
        many = f"more than {most}" if heaviest > most else str(heaviest)
        raise OnnxError(
            f"with the nodes of its functions, again for each call, the model has more than the {most} nodes that are "
            f"allowed; node {word!r} alone stands for {many}. Calls of functions in functions multiply",
            node=word,
        )


def _sizes(functions: Functions, most: int) -> dict[_Key, int]:
    """The nodes that one call of each function stands for, at most `most` + 1.

    It is 0 for a function whose calls come back to it, which is refused where one is read.
    """
    callees = {key: _called(function.node, functions) for key, function in functions.items()}
    callers: dict[_Key, list[_Key]] = {key: [] for key in functions}
    for key, called in callees.items():
        for callee in called:
            callers[callee].append(key)
    missing = {key: len(called) for key, called in callees.items()}
    ready = [key for key, count in missing.items() if not count]
    sizes: dict[_Key, int] = dict.fromkeys(functions, 0)
    while ready:
        key = ready.pop()
        sizes[key] = min(sum(_size(node, sizes) for node in functions[key].node), most + 1)
        for caller in callers[key]:
            missing[caller] -= 1
            if not missing[caller]:
                ready.append(caller)
    return sizes


def _called(nodes: Iterable[onnx.NodeProto], functions: Functions) -> set[_Key]:
    found: set[_Key] = set()
    for node in nodes:
        key = call_key(node)
        if key in functions:
            found.add(key)
        for body in _bodies(node):
            found |= _called(body.node, functions)
    return found


def _size(node: onnx.NodeProto, sizes: Mapping[_Key, int]) -> int:
    """The node and all that it stands for; of an If's branches the larger, since it may be that one alone is read."""
    inside = [sum(_size(inner, sizes) for inner in body.node) for body in _bodies(node)]
    within = max(inside, default=0) if node.op_type == "If" else sum(inside)
    return 1 + sizes.get(call_key(node), 0) + within


def _bodies(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    return (attribute.g for attribute in node.attribute if attribute.type == AttributeProto.GRAPH)
