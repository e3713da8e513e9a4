"""A body again and again, while its condition holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count

import numpy as np

from weft_graph.attributes import as_body
from weft_graph.ir import AttributeValue
from weft_graph.operators.loop import MOST_PART_BYTES, MOST_PARTS
from weft_graph.shapes.scanning import Scanned
from weft_graph.types import array_type
from weft_kernels.arguments import optional, required
from weft_kernels.body import Body
from weft_kernels.host import number
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.stacks import check_alike, empty

HOST_INPUTS = (0, 1)
_ROWS = Scanned(0, backwards=False)


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp, subgraph = context.xp, as_body(attributes["body"])
    limit, condition = optional(inputs, 0), optional(inputs, 1)
    states = len(subgraph.inputs) - 2
    given = required(inputs[2:])
    carried: tuple[Array, ...] = given[:states]
    body = Body(context, subgraph, given[states:])
    # A turn runs only where the condition holds: what the body reads is true.
    holds = xp.ones(() if condition is None else condition.shape, dtype=bool)
    parts: list[list[Array]] = [[] for _ in subgraph.outputs[1 + states :]]
    held = 0
    goes_on = condition is None or _one(np, condition, "cond")
    for turn in count() if limit is None else range(int(_one(np, limit, "M"))):
        if not goes_on:
            break
        condition_out, *outputs = body((xp.asarray(turn, dtype=xp.int64), holds, *carried), turn)
        carried = tuple(outputs[:states])
        if parts and turn >= MOST_PARTS:
            raise ValueError(f"it gives a part for each turn, which at most {MOST_PARTS} turns may, and has not ended")
        for made, name, part in zip(parts, subgraph.outputs[1 + states :], outputs[states:], strict=True):
            check_alike(name, turn, (made[0] if made else part).shape, made[0] if made else part, part)
            made.append(part)
            held += part.nbytes
        if held > MOST_PART_BYTES:
            raise ValueError(f"its turns' parts take more than {MOST_PART_BYTES} bytes, and it has not ended")
        goes_on = _one(xp, condition_out, subgraph.outputs[0])
    if parts and not parts[0]:
        first = array_type(np.empty((), np.int64)), array_type(np.empty(holds.shape, bool))
        types = body.types((*first, *map(array_type, carried)))
        return (*carried, *(empty(xp, _ROWS, type_) for type_ in types[1 + states :]))
    return (*carried, *(xp.stack(made) for made in parts))


def _one(xp: object, array: Array, name: str) -> int:
    if array.size != 1:
        raise ValueError(f"{name} must be one element, and has {array.size}")
    return int(number(xp, array.reshape(-1)[0]))
