"""Layers of Transformers: attention of many heads, and a block of it with what stands around it."""

from __future__ import annotations

from weft import ops
from weft.expression import Expression, Operand
from weft.nn.initializers import Init, fan_in_uniform
from weft.nn.layer import Layer, as_expression, at_least_one
from weft.nn.normalization import LayerNorm
from weft.nn.stateless import Dropout
from weft.nn.weighted import Linear

ACTIVATIONS = {"gelu": ops.gelu, "relu": ops.relu}


class MultiHeadAttention(Layer):
    """x (batch, queries, width) looks at itself, or at `context` (batch, keys, width), and gives the shape of x.

    Parameters: those of the Linear layers `query`, `key`, `value` and `out`. Keys and values have `kv_heads` heads,
    each for as many of the `heads` of the queries. `causal`: a token looks at itself and those before it. `mask`, bool
    (True where a token looks) or floats that are added, broadcasts to (batch, heads, queries, keys).

    Vaswani et al. 2017.
    """

    kind = "attention"

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        kv_heads: int | None = None,
        causal: bool = False,
        bias: bool = True,
        init: Init = fan_in_uniform,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        self.width = at_least_one("width", width)
        self.heads = at_least_one("heads", heads)
        self.kv_heads = heads if kv_heads is None else at_least_one("kv_heads", kv_heads)
        if width % heads:
            raise ValueError(f"a width of {width} does not fall into {heads} heads")
        if heads % self.kv_heads:
            raise ValueError(f"{heads} heads of queries are no multiple of {self.kv_heads} heads of keys")
        self.causal = causal
        narrow = width // heads * self.kv_heads
        self.query = Linear(width, width, bias=bias, init=init)
        self.key = Linear(width, narrow, bias=bias, init=init)
        self.value = Linear(width, narrow, bias=bias, init=init)
        self.out = Linear(width, width, bias=bias, init=init)

    def __call__(self, x: Operand, /, context: Operand | None = None, *, mask: Operand | None = None) -> Expression:
        x = as_expression(x)
        looked_at = x if context is None else as_expression(context)
        for given in (x, looked_at):
            self.check_size(given, 2, self.width, "elements")
        for place, layer in (("query", self.query), ("key", self.key), ("value", self.value), ("out", self.out)):
            layer.adopt(self.scope, place)
        mixed = ops.attention(
            self.query(x),
            self.key(looked_at),
            self.value(looked_at),
            mask,
            heads=self.heads,
            kv_heads=self.kv_heads,
            causal=self.causal,
            name=self.label(),
        )
        return self.out(mixed)


class TransformerLayer(Layer):
    """Attention, then two Linear layers, each added to what it reads: x (batch, tokens, width) gives the same shape.

    It is an encoder's layer, and with `causal` a decoder's that has nothing else to look at. Norms (`norm1`, `norm2`)
    come before each part, or after each sum with `norm_first=False`. `hidden` is the width between the Linear layers
    `up` and `down`, 4 times the width unless set; a share `dropout` of what each part gives is zero in training.
    """

    kind = "transformer"

    def __init__(
        self,
        width: int,
        heads: int,
        hidden: int | None = None,
        *,
        kv_heads: int | None = None,
        causal: bool = False,
        dropout: float = 0.1,
        activation: str = "gelu",
        norm_first: bool = True,
        epsilon: float = 1e-5,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        if activation not in ACTIVATIONS:
            raise ValueError(f"activation {activation!r} is none of {', '.join(sorted(ACTIVATIONS))}")
        self.attention = MultiHeadAttention(width, heads, kv_heads=kv_heads, causal=causal)
        wide = 4 * width if hidden is None else at_least_one("hidden", hidden)
        self.up, self.down = Linear(width, wide), Linear(wide, width)
        self.norm1, self.norm2 = LayerNorm(width, epsilon=epsilon), LayerNorm(width, epsilon=epsilon)
        self.activation = activation
        self.norm_first = norm_first
        self.dropout = Dropout(dropout) if dropout else None

    def __call__(self, x: Operand, /, *, mask: Operand | None = None) -> Expression:
        x = as_expression(x)
        for place in ("attention", "up", "down", "norm1", "norm2"):
            layer: Layer = getattr(self, place)
            layer.adopt(self.scope, place)
        if self.norm_first:
            x = ops.add(x, self._dropped(self.attention(self.norm1(x), mask=mask)), name=self.label("attended"))
            return ops.add(x, self._dropped(self._fed(self.norm2(x))), name=self.label())
        x = self.norm1(ops.add(x, self._dropped(self.attention(x, mask=mask)), name=self.label("attended")))
        return self.norm2(ops.add(x, self._dropped(self._fed(x)), name=self.label("fed")))

    def _fed(self, x: Expression) -> Expression:
        return self.down(ACTIVATIONS[self.activation](self.up(x)))

    def _dropped(self, x: Expression) -> Expression:
        return x if self.dropout is None else self.dropout(x)
