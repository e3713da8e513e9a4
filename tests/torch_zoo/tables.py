"""Embeddings and bags of them with all their options, and the recommenders that live on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torch_zoo.case import Case, Example, ints

ROWS = 12


class Padded(nn.Module):
    """Tokens whose padding row is not zero: it counts in the output and has no gradient."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.table = nn.Embedding(ROWS, 6, padding_idx=2, **options)
        nn.init.normal_(self.table.weight)
        self.head = nn.Linear(6, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(torch.tanh(self.table(tokens)))


class PaddedFromEnd(nn.Module):
    """Padding counted from the end, by `functional.embedding`, beside a table without padding."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Parameter(torch.randn(ROWS, 6))
        self.places = nn.Embedding(5, 6)
        self.head = nn.Linear(6, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(torch.sin(F.embedding(tokens, self.words, padding_idx=-3) + self.places(places)))


class PaddedTied(nn.Module):
    """The table's padding row gets a gradient as a row of the head alone."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(ROWS, 6, padding_idx=0)
        self.mix = nn.Linear(6, 6)
        nn.init.normal_(self.table.weight)

    def forward(self, tokens: Tensor) -> Tensor:
        return torch.tanh(self.mix(self.table(tokens))) @ self.table.weight.t()


class Tokens(nn.Module):
    """A classifier on the mean of its tokens' rows."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.table = nn.Embedding(ROWS, 6, **options)
        self.head = nn.Linear(6, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.table(tokens).mean(1))


class Bag(nn.Module):
    """One EmbeddingBag over ids of two dimensions, or of one with offsets, and a head."""

    def __init__(self, mode: str, **options: Any) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(ROWS, 6, mode=mode, **options)
        nn.init.normal_(self.bag.weight)
        self.head = nn.Linear(6, 4)

    def forward(self, ids: Tensor, offsets: Tensor | None = None) -> Tensor:
        return self.head(torch.tanh(self.bag(ids, offsets)))


class WeightedBag(nn.Module):
    """A sum of rows by weights that are fed, and one by weights that are learned."""

    def __init__(self) -> None:
        super().__init__()
        self.fed = nn.EmbeddingBag(ROWS, 6, mode="sum")
        self.learned = nn.EmbeddingBag(ROWS, 6, mode="sum")
        self.importance = nn.Embedding(ROWS, 1)

    def forward(self, ids: Tensor, weights: Tensor) -> Tensor:
        learned = torch.sigmoid(self.importance(ids).squeeze(-1))
        return self.fed(ids, per_sample_weights=weights) * self.learned(ids, per_sample_weights=learned)


class TwoTower(nn.Module):
    """Users and items by bags of their features, whose inner products are contrasted within the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.user = nn.EmbeddingBag(ROWS, 6, mode="mean", padding_idx=0, sparse=True)
        self.item = nn.EmbeddingBag(ROWS, 6, mode="sum", padding_idx=0)
        self.user_tower, self.item_tower = nn.Linear(6, 4), nn.Linear(6, 4)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        users = F.normalize(self.user_tower(self.user(user)), dim=-1)
        items = F.normalize(self.item_tower(self.item(item)), dim=-1)
        scores = users @ items.t() * 4
        return F.cross_entropy(scores, torch.arange(scores.shape[0], device=scores.device))


class DLRM(nn.Module):
    """Dense features and embeddings joined by their inner products (Naumov et al., 2019)."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, 4, mode="sum", sparse=True) for rows in (7, 5, 9))
        self.bottom = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
        self.top = nn.Sequential(nn.Linear(6 + 4, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        bottom = self.bottom(dense)
        rows = [table(ids[:, place : place + 2]) for place, table in enumerate(self.tables)]
        stacked = torch.stack([bottom, *rows], 1)
        products = torch.bmm(stacked, stacked.transpose(1, 2))
        left, right = torch.tril_indices(4, 4, -1)
        return self.top(torch.cat([bottom, products[:, left, right]], 1)).squeeze(1)


class DeepFM(nn.Module):
    """A factorization machine beside a deep network over the same embeddings (Guo et al., 2017)."""

    def __init__(self, fields: int = 4, width: int = 3) -> None:
        super().__init__()
        self.linear, self.factors = nn.Embedding(20, 1), nn.Embedding(20, width)
        self.bias = nn.Parameter(torch.zeros(1))
        self.deep = nn.Sequential(
            nn.Linear(fields * width, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1)
        )
        self.register_buffer("offsets", torch.arange(fields) * 5)

    def forward(self, ids: Tensor, clicks: Tensor) -> dict[str, Tensor]:
        ids = ids + self.offsets
        rows = self.factors(ids)
        pairs = 0.5 * (rows.sum(1).pow(2) - rows.pow(2).sum(1)).sum(1)
        logits = self.linear(ids).sum((1, 2)) + pairs + self.deep(rows.flatten(1)).squeeze(1) + self.bias
        return {"loss": F.binary_cross_entropy_with_logits(logits, clicks), "logits": logits}


class MatrixFactorization(nn.Module):
    """Ratings by inner products of rows and biases (Koren et al., 2009)."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(9, 4), nn.Embedding(11, 4)
        self.user_bias, self.item_bias = nn.Embedding(9, 1), nn.Embedding(11, 1)

    def forward(self, user: Tensor, item: Tensor, rating: Tensor) -> tuple[Tensor, Tensor]:
        score = (self.users(user) * self.items(item)).sum(-1)
        score = score + self.user_bias(user).squeeze(-1) + self.item_bias(item).squeeze(-1)
        return F.mse_loss(score, rating), score


class SkipGram(nn.Module):
    """Words, their contexts and negative samples (Mikolov et al., 2013); zero context rows, as at the start."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(ROWS, 4, sparse=True)
        self.contexts = nn.Embedding(ROWS, 4, sparse=True)

    def forward(self, word: Tensor, context: Tensor, negatives: Tensor) -> Tensor:
        rows = self.words(word)
        near = (rows * self.contexts(context)).sum(-1)
        far = torch.einsum("bd,bnd->bn", rows, self.contexts(negatives))
        return -(F.logsigmoid(near) + F.logsigmoid(-far).sum(1)).mean()


def _offsets(ids: int, *starts: int) -> Callable[[], Example]:
    return lambda: (torch.randint(0, ROWS, (ids,)), torch.tensor(starts))


def _bag(mode: str, **options: Any) -> Callable[[], nn.Module]:
    return lambda: Bag(mode, **options)


_TOKENS = ints(ROWS, 4, 5)
_STATIC = {"dynamic": False}

CASES = (
    Case(
        "padding row that is not zero",
        "text classifier",
        Padded,
        _TOKENS,
        traps=("padding_idx", "integer inputs", "dense embedding"),
    ),
    Case("padding from the end", "text classifier", PaddedFromEnd, _TOKENS, traps=("padding_idx", "integer inputs")),
    Case(
        "padding of a tied table",
        "language model",
        PaddedTied,
        _TOKENS,
        traps=("padding_idx", "tied weights", "integer inputs"),
    ),
    Case(
        "max_norm",
        "text classifier",
        lambda: Tokens(max_norm=0.5),
        _TOKENS,
        r"table.*max_norm|max_norm.*table",
        traps=("max_norm",),
    ),
    Case(
        "max_norm of a bag",
        "text classifier",
        _bag("sum", max_norm=0.5),
        _TOKENS,
        r"bag.*max_norm|max_norm.*bag",
        traps=("max_norm",),
    ),
    Case(
        "scale_grad_by_freq",
        "text classifier",
        lambda: Tokens(scale_grad_by_freq=True),
        _TOKENS,
        r"table.*scale_grad_by_freq|scale_grad_by_freq.*table",
        traps=("scale_grad_by_freq",),
    ),
    Case(
        "scale_grad_by_freq of a bag",
        "text classifier",
        _bag("mean", scale_grad_by_freq=True),
        _TOKENS,
        r"bag.*scale_grad_by_freq|scale_grad_by_freq.*bag",
        traps=("scale_grad_by_freq",),
    ),
    Case(
        "sparse embedding",
        "text classifier",
        lambda: Tokens(sparse=True),
        _TOKENS,
        traps=("sparse embedding", "integer inputs"),
    ),
    Case(
        "bag mean",
        "text classifier",
        _bag("mean", sparse=True),
        _TOKENS,
        traps=("EmbeddingBag mean", "sparse embedding"),
        further=True,
    ),
    Case(
        "bag mean with padding",
        "text classifier",
        _bag("mean", padding_idx=2),
        _TOKENS,
        traps=("EmbeddingBag mean", "padding_idx"),
    ),
    Case(
        "bag max with padding",
        "text classifier",
        _bag("max", padding_idx=2),
        _TOKENS,
        traps=("EmbeddingBag max", "padding_idx"),
    ),
    Case(
        "bag sum with offsets",
        "text classifier",
        _bag("sum"),
        _offsets(9, 0, 2, 2, 5),
        options=_STATIC,
        traps=("EmbeddingBag sum", "offsets"),
    ),
    Case(
        "bag mean with offsets",
        "text classifier",
        _bag("mean", padding_idx=2),
        _offsets(9, 0, 2, 2, 5),
        options=_STATIC,
        traps=("EmbeddingBag mean", "offsets", "padding_idx"),
        further=True,
    ),
    Case(
        "bag max with offsets",
        "text classifier",
        _bag("max"),
        _offsets(9, 0, 2, 4, 5),
        r"EmbeddingBag.*max|max.*EmbeddingBag",
        options=_STATIC,
        traps=("EmbeddingBag max", "offsets"),
    ),
    Case(
        "bag with last offset",
        "text classifier",
        _bag("sum", include_last_offset=True),
        _offsets(9, 0, 2, 6, 9),
        options=_STATIC,
        traps=("EmbeddingBag sum", "offsets"),
        further=True,
    ),
    Case(
        "bag with weights",
        "recommender",
        WeightedBag,
        lambda: (torch.randint(0, ROWS, (4, 5)), torch.rand(4, 5)),
        traps=("EmbeddingBag sum", "per_sample_weights", "several inputs"),
    ),
    Case(
        "two-tower",
        "recommender",
        TwoTower,
        lambda: (torch.randint(0, ROWS, (4, 5)), torch.randint(0, ROWS, (4, 3))),
        traps=("EmbeddingBag mean", "padding_idx", "sparse embedding", "scalar loss"),
        further=True,
    ),
    Case(
        "DLRM",
        "recommender",
        DLRM,
        lambda: (torch.randn(4, 6), torch.randint(0, 5, (4, 4))),
        traps=("EmbeddingBag sum", "sparse embedding", "several inputs"),
        further=True,
    ),
    Case(
        "DeepFM",
        "recommender",
        DeepFM,
        lambda: (torch.randint(0, 5, (4, 4)), torch.tensor([0.0, 1.0, 1.0, 0.0])),
        traps=("dict output", "several outputs", "scalar loss", "Dropout", "BatchNorm training"),
    ),
    Case(
        "matrix factorization",
        "recommender",
        MatrixFactorization,
        lambda: {"user": torch.randint(0, 9, (4,)), "item": torch.randint(0, 11, (4,)), "rating": torch.rand(4)},
        traps=("dict example", "several outputs", "scalar loss"),
        further=True,
    ),
    Case(
        "skip-gram",
        "word vectors",
        SkipGram,
        lambda: (torch.randint(0, ROWS, (4,)), torch.randint(0, ROWS, (4,)), torch.randint(0, ROWS, (4, 3))),
        traps=("sparse embedding", "scalar loss", "several inputs"),
    ),
)
