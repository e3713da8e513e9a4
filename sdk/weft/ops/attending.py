"""Attention, and what tells it where a token stands."""

from __future__ import annotations

from weft.expression import Expression, Operand
from weft.ops.generic import Name, one


def attention(
    q: Operand,
    k: Operand,
    v: Operand,
    mask: Operand | None = None,
    *,
    heads: int | None = None,
    kv_heads: int | None = None,
    causal: bool = False,
    window: tuple[int | None, int | None] = (None, None),
    scale: float | None = None,
    softcap: float = 0.0,
    name: Name = None,
) -> Expression:
    """softmax(q k' * scale + mask) v by head; `scale` is 1 / sqrt(size) unless set. Vaswani et al. 2017.

    q (batch, heads, queries, size), k (batch, kv_heads, keys, size) and v (batch, kv_heads, keys, value size) give
    (batch, heads, queries, value size); with `heads` all are (batch, length, heads * size), and `kv_heads` is `heads`
    unless set. Heads of keys are shared by groups of queries' heads. `mask`, bool (True where a query looks) or floats
    that are added, broadcasts to (batch, heads, queries, keys). `causal`: query i looks at keys 0 to i. `window` is how
    many keys before and after its own place a query looks at. A query that may look at nothing gives zeros.
    """
    left, right = (-1 if bound is None else bound for bound in window)
    return one(
        "Attention",
        q,
        k,
        v,
        mask,
        q_num_heads=heads,
        kv_num_heads=heads if kv_heads is None else kv_heads,
        is_causal=int(causal),
        left_window_size=left,
        right_window_size=right,
        scale=scale,
        softcap=softcap,
        name=name,
    )


def rotary_embedding(
    x: Operand,
    cos: Operand,
    sin: Operand,
    places: Operand | None = None,
    *,
    heads: int | None = None,
    turned: int = 0,
    interleaved: bool = False,
    name: Name = None,
) -> Expression:
    """Pairs of each head's elements turned by the angles of their token's place. Su et al. 2021.

    x (batch, heads, length, size), or with `heads` (batch, length, heads * size), gives the same shape. `cos` and `sin`
    are (places, size / 2) with `places` (batch, length) of integers, or (batch, length, size / 2) without; a batch of 1
    there holds for all samples. Only the first `turned` elements of a head are turned, all where that is 0; pairs are
    its halves, or neighbours where `interleaved`.
    """
    return one(
        "RotaryEmbedding",
        x,
        cos,
        sin,
        places,
        num_heads=heads,
        rotary_embedding_dim=turned,
        interleaved=int(interleaved),
        name=name,
    )
