"""What a slot owes of its gradients, for a snapshot and back. It passes no socket. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from weft_kvstore.arrays.array import Array
from weft_kvstore.operations.gradient_encoders import GradientEncoders
from weft_kvstore.operations.operation import Link, Operation
from weft_kvstore.sharding.routing import Routing


class ResidualOperation(Operation):
    """Ends at once, with copies of what is owed by name; with `named`, takes that on before."""

    def __init__(self, future: Future[Any], named: Mapping[str, Array] | None) -> None:
        super().__init__(future)
        self._named = named
        self._owed: dict[str, Array] = {}

    def use(self, encoders: GradientEncoders) -> None:
        self._encoders = encoders

    def prepare(self, routing: Routing) -> dict[int, int]:
        if self._named is not None:
            self._encoders.restore(self._named)
        self._owed = self._encoders.export()
        return {}

    def begin(self, link: Link) -> None:
        raise AssertionError("no shard has a part of it")

    def give_up(self, link: Link) -> None:
        raise AssertionError("no shard has a part of it")

    def result(self) -> dict[str, Array]:
        return self._owed

    def let_go(self) -> None:
        self._named = None

    def __str__(self) -> str:
        return "export of residuals" if self._named is None else "restore of residuals"
