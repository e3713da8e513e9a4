"""What the operators that scatter have in common: their reductions, and the gradients of data and updates.

Both ways of naming elements (one index each, or a tuple for each slice) have a gather that reads what a scatter writes,
so the gradients are written once over the pair.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from weft_graph.attributes import as_str
from weft_graph.ir import WEFT_DOMAIN, AttributeValue
from weft_graph.schema import GradientContext, InferContext
from weft_graph.shapes.broadcasting import check_same_dtype
from weft_graph.shapes.composing import apply
from weft_graph.shapes.extremes import hits
from weft_graph.shapes.flow import incoming, scalar

REDUCTIONS: Final = ("none", "add", "mul", "max", "min")


def infer_reduction(context: InferContext) -> str:
    """The attribute `reduction`, of operators on data, indices and updates, which are checked to be of one type."""
    check_same_dtype(context, 0, 2)
    reduction = as_str(context.attribute("reduction"))
    if reduction not in REDUCTIONS:
        raise context.shape_error(f"reduction {reduction!r} is none of {', '.join(REDUCTIONS)}")
    return reduction


@dataclass(frozen=True, slots=True)
class Scattering:
    """A scatter and the gather of the same indices, as the steps that gradients are made of."""

    context: GradientContext
    gather: str
    attributes: Mapping[str, AttributeValue]

    def read(self, data: str) -> str:
        """The elements of `data` that the indices name: the updates' shape."""
        inputs = (data, self.context.input(1))
        return self.context.emit(self.gather, inputs, self.attributes)[0]

    def write(self, data: str, updates: str, reduction: str) -> str:
        """The node's scatter of other data and updates."""
        attributes = {**self.attributes, "reduction": reduction}
        inputs = (data, self.context.input(1), updates)
        return self.context.emit(self.context.node.op_type, inputs, attributes)[0]

    def gradients(self) -> tuple[str | None, None, str | None]:
        """The gradients of the data and the updates. Where `none` writes an element twice they are undefined."""
        gradient = incoming(self.context)
        match as_str(self.context.attribute("reduction")):
            case "none":
                return self._replaced(gradient)
            case "add":
                return gradient, None, self.read(gradient)
            case "mul":
                return self._multiplied(gradient)
            case _:
                return self._chosen(gradient)

    def _replaced(self, gradient: str) -> tuple[str | None, None, str | None]:
        updates = self.context.input(2)
        zeros = _spread(self.context, scalar(self.context, 0, gradient), updates)
        return self.write(gradient, zeros, "none"), None, self.read(gradient)

    def _multiplied(self, gradient: str) -> tuple[str | None, None, str | None]:
        """An update's share is the product of all others at its place: with one zero among them, the rest's product."""
        context, data, updates = self.context, self.context.input(0), self.context.input(2)
        zero, one = scalar(context, 0, data), scalar(context, 1, data)
        factors = self.write(_spread(context, one, data), updates, "mul")
        by_data = apply(context, "Mul", gradient, factors)
        is_zero = apply(context, "Equal", updates, zero)
        safe = apply(context, "Where", is_zero, one, updates)
        zeros = self.write(_spread(context, zero, data), hits(context, updates, zero), "add")
        rest = self.read(apply(context, "Mul", gradient, self.write(data, safe, "mul")))
        others = apply(context, "Sub", self.read(zeros), hits(context, updates, zero))
        share = apply(context, "Where", apply(context, "Equal", others, zero), apply(context, "Div", rest, safe), zero)
        return by_data, None, share

    def _chosen(self, gradient: str) -> tuple[str | None, None, str | None]:
        """The data's element and its updates that are equal to the extreme share its gradient evenly."""
        context, data, updates, output = (
            self.context,
            self.context.input(0),
            self.context.input(2),
            self.context.output(0),
        )
        of_data, of_updates = hits(context, data, output), hits(context, updates, self.read(output))
        share = apply(context, "Div", gradient, self.write(of_data, of_updates, "add"))
        return apply(context, "Mul", share, of_data), None, apply(context, "Mul", self.read(share), of_updates)


def _spread(context: GradientContext, number: str, like: str) -> str:
    """The scalar at every place of `like`, without memory of its own."""
    attributes: dict[str, AttributeValue] = {"keepdims": 0}
    return context.emit("ReduceSumGrad", (number, like), attributes, domain=WEFT_DOMAIN)[0]
