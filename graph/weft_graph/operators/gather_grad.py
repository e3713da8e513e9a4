"""GatherGrad(gradient, data, indices): the sum, for each entry of `data` along `axis`, of the gradients that name it.

Gradients of one entry are added in the order of the indices. Entries that no index names have gradient 0, and an index
that is `padding_id` names none. An index below 0 counts from the end if `wraps`, and is an error otherwise.
"""

from __future__ import annotations

from weft_graph.formals import FLOATS, INDICES, required
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.schema import Attribute, InferContext, OpSchema
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    return (context.input(1),)


SCHEMA = OpSchema(
    op_type="GatherGrad",
    inputs=(required("gradient", FLOATS), required("data", FLOATS), required("indices", INDICES)),
    outputs=(required("data_gradient", FLOATS),),
    infer=_infer,
    attributes={
        "axis": Attribute(int, default=0),
        "wraps": Attribute(int, required=True),
        "padding_id": Attribute(int),
    },
    domain=WEFT_DOMAIN,
    shape_only=(1,),
)
