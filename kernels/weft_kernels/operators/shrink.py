"""x nearer to 0 where it is far from it, else 0; of integers the bias is cut to one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.attributes import as_float
from weft_graph.ir import AttributeValue
from weft_kernels.arguments import required
from weft_kernels.element_types import is_float
from weft_kernels.kernel import Array, KernelContext

IN_FLOAT32 = ("float16", "bfloat16")


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    (x,) = required(inputs)
    limit, bias = as_float(attributes["lambd"]), as_float(attributes["bias"])
    # The type holds no float: what is above 2.5 is above 2, and a bias that is negative becomes a difference.
    given = x.dtype.type(abs(bias) if is_float(x.dtype) else int(abs(bias)))
    nearer, further = (x - given, x + given) if bias >= 0 else (x + given, x - given)
    return (xp.where(x > limit, nearer, xp.where(x < -limit, further, x.dtype.type(0))),)
