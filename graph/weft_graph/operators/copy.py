"""Copy(value): the value on another device of the same worker, `target`; `priority` is of copies at the same time."""

from __future__ import annotations

from weft_graph.formals import ANY, required
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.schema import Attribute, OpSchema
from weft_graph.shapes.broadcasting import infer_unary

SCHEMA = OpSchema(
    op_type="Copy",
    inputs=(required("value", ANY),),
    outputs=(required("copy", ANY),),
    infer=infer_unary,
    attributes={
        "source": Attribute(str, required=True),
        "target": Attribute(str, required=True),
        "priority": Attribute(int, default=0),
    },
    domain=WEFT_DOMAIN,
    views=True,
)
