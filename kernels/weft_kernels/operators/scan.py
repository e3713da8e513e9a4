"""A body for each part of its inputs along an axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.attributes import as_body, as_int, as_ints
from weft_graph.ir import AttributeValue
from weft_graph.shapes.scanning import Scanned, scanned
from weft_graph.types import array_type
from weft_kernels.arguments import required
from weft_kernels.body import Body
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.stacks import Whole, empty, part_of, turns_of


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    subgraph = as_body(attributes["body"])
    given = required(inputs)
    states = len(subgraph.inputs) - as_int(attributes["num_scan_inputs"])
    carried, whole = given[:states], given[states : len(subgraph.inputs)]
    body = Body(context, subgraph, given[len(subgraph.inputs) :])
    along = _scanned(attributes, "scan_input", [array.ndim for array in whole])
    turns = turns_of(whole, along)
    if turns == 0:
        return (*carried, *_nothing(context, body, attributes, (carried, whole, along)))
    made: list[Whole] = []
    for turn in range(turns):
        parts = (part_of(array, how, turn, turns) for array, how in zip(whole, along, strict=True))
        outputs = body((*carried, *parts), turn)
        carried = outputs[:states]
        if turn == 0:
            together = _scanned(attributes, "scan_output", [part.ndim + 1 for part in outputs[states:]])
            names = subgraph.outputs[states:]
            made = [Whole(context.xp, how, turns, name) for how, name in zip(together, names, strict=True)]
        for stack, part in zip(made, outputs[states:], strict=True):
            stack.put(turn, part)
    return (*carried, *(stack.array() for stack in made))


def _nothing(
    context: KernelContext,
    body: Body,
    attributes: Mapping[str, AttributeValue],
    given: tuple[Sequence[Array], Sequence[Array], Sequence[Scanned]],
) -> list[Array]:
    """The scan outputs of no turns."""
    carried, whole, along = given
    parts = (how.part(array_type(array)) for array, how in zip(whole, along, strict=True))
    types = body.types((*map(array_type, carried), *parts))[len(carried) :]
    together = _scanned(attributes, "scan_output", [type_.rank + 1 for type_ in types])
    return [empty(context.xp, how, type_) for how, type_ in zip(together, types, strict=True)]


def _scanned(attributes: Mapping[str, AttributeValue], what: str, ranks: Sequence[int]) -> tuple[Scanned, ...]:
    axes, directions = (as_ints(attributes.get(f"{what}_{list_}", ())) for list_ in ("axes", "directions"))
    return scanned(axes, directions, ranks)
