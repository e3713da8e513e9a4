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
    """x (batch, queries, embed_dim) looks at itself, or at `context` (batch, keys, embed_dim); gives the shape of x.

    Parameters: those of the Linear layers `query`, `key`, `value` and `out`. Keys and values have `kv_heads` heads,
    each for as many of the `num_heads` of the queries. `causal`: a token looks at itself and those before it. `mask`,
    bool (True where a token looks) or floats that are added, broadcasts to (batch, heads, queries, keys).

    Vaswani et al. 2017.
    """

    kind = "attention"

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        kv_heads: int | None = None,
        causal: bool = False,
        bias: bool = True,
        init: Init = fan_in_uniform,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        self.embed_dim = at_least_one("embed_dim", embed_dim)
        self.num_heads = at_least_one("num_heads", num_heads)
        self.kv_heads = num_heads if kv_heads is None else at_least_one("kv_heads", kv_heads)
        if embed_dim % num_heads:
            raise ValueError(f"an embed_dim of {embed_dim} does not fall into {num_heads} heads")
        if num_heads % self.kv_heads:
            raise ValueError(f"{num_heads} heads of queries are no multiple of {self.kv_heads} heads of keys")
        self.causal = causal
        narrow = embed_dim // num_heads * self.kv_heads
        self.query = Linear(embed_dim, embed_dim, bias=bias, init=init)
        self.key = Linear(embed_dim, narrow, bias=bias, init=init)
        self.value = Linear(embed_dim, narrow, bias=bias, init=init)
        self.out = Linear(embed_dim, embed_dim, bias=bias, init=init)

    def __call__(self, x: Operand, /, context: Operand | None = None, *, mask: Operand | None = None) -> Expression:
        x = as_expression(x)
        looked_at = x if context is None else as_expression(context)
        for given in (x, looked_at):
            self.check_size(given, 2, "embed_dim", self.embed_dim)
        for place, layer in (("query", self.query), ("key", self.key), ("value", self.value), ("out", self.out)):
            layer.adopt(self.scope, place)
        mixed = ops.attention(
            self.query(x),
            self.key(looked_at),
            self.value(looked_at),
            mask,
            heads=self.num_heads,
            kv_heads=self.kv_heads,
            causal=self.causal,
            name=self.label(),
        )
        return self.out(mixed)


class TransformerLayer(Layer):
    """Attention, then two Linear layers, each added to what it reads: x (batch, tokens, d_model) gives the same shape.

    It is an encoder's layer, and with `causal` a decoder's that has nothing else to look at. Norms (`norm1`, `norm2`)
    come before each part, or after each sum with `norm_first=False`. `dim_feedforward` is the width between the Linear
    layers `up` and `down`, 4 times `d_model` unless set; a share `dropout` of what each part gives is zero in training.
    """

    kind = "transformer"

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int | None = None,
        *,
        kv_heads: int | None = None,
        causal: bool = False,
        dropout: float = 0.1,
        activation: str = "gelu",
        norm_first: bool = True,
        layer_norm_eps: float = 1e-5,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        if activation not in ACTIVATIONS:
            raise ValueError(f"activation {activation!r} is none of {', '.join(sorted(ACTIVATIONS))}")
        self.attention = MultiHeadAttention(d_model, nhead, kv_heads=kv_heads, causal=causal)
        wide = 4 * d_model if dim_feedforward is None else at_least_one("dim_feedforward", dim_feedforward)
        self.up, self.down = Linear(d_model, wide), Linear(wide, d_model)
        self.norm1, self.norm2 = LayerNorm(d_model, layer_norm_eps), LayerNorm(d_model, layer_norm_eps)
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
