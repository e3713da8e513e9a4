"""Products of matrices."""

from __future__ import annotations

from weft.expression import Expression, Operand
from weft.ops.generic import Name, one


def matmul(a: Operand, b: Operand, *, name: Name = None) -> Expression:
    """The matrix product (..., m, k) x (..., k, n) -> (..., m, n), as `numpy.matmul`."""
    return one("MatMul", a, b, name=name)


def gemm(
    a: Operand,
    b: Operand,
    c: Operand | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    trans_a: bool = False,
    trans_b: bool = False,
    name: Name = None,
) -> Expression:
    """alpha * a' b' + beta * c for matrices a' (m, k), b' (k, n); c broadcasts to (m, n). a' is a or its transpose."""
    return one("Gemm", a, b, c, alpha=alpha, beta=beta, transA=int(trans_a), transB=int(trans_b), name=name)


def einsum(equation: str, *operands: Operand, name: Name = None) -> Expression:
    """Sums of products over labelled dimensions: `einsum("bij,bjk->bik", a, b)`, as `numpy.einsum`."""
    return one("Einsum", *operands, equation=equation, name=name)
