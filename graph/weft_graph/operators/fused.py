"""Nodes that run as one: pointwise ones in pieces that stay in a cache, or any that onnxruntime computes."""

from __future__ import annotations

from weft_graph.formals import ANY, variadic
from weft_graph.ir import WEFT_DOMAIN, Subgraph
from weft_graph.limits import PROGRAM_LIMITS
from weft_graph.schema import Attribute, InferContext, MemoryOrder, OpSchema
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    body = context.attribute("body")
    assert isinstance(body, Subgraph), "checked before inference"
    return context.body(body, [context.input(index) for index in range(len(context.node.inputs))])


FUSED = OpSchema(
    op_type="Fused",
    inputs=(variadic("values", ANY),),
    outputs=(variadic("results", ANY),),
    infer=_infer,
    attributes={"body": Attribute(Subgraph, required=True)},
    domain=WEFT_DOMAIN,
    in_place=range(PROGRAM_LIMITS.node_values),
    order=MemoryOrder.INPUT,
)
"""Fused(values ...): the outputs of `body`, whose nodes are pointwise and whose inputs broadcast to their shape."""


SESSION = OpSchema(
    op_type="Session",
    inputs=(variadic("values", ANY),),
    outputs=(variadic("results", ANY),),
    infer=_infer,
    attributes={"body": Attribute(Subgraph, required=True)},
    domain=WEFT_DOMAIN,
)
"""Session(values ...): the outputs of `body`, which onnxruntime computes as one; made where a program is bound."""
