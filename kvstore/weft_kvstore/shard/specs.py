"""How a shard's lots and units are updated, read off the job's description. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from weft_graph.program import Update
from weft_kernels.blocks import VECTOR_BLOCK
from weft_kernels.rules.record import Rule
from weft_kvstore.description.check import rule_of
from weft_kvstore.description.first import is_given
from weft_kvstore.description.records import KeyDescription, StoreDescription
from weft_kvstore.hyper.key_hyper import KeyHyper
from weft_kvstore.lot.spec import LotSpec
from weft_kvstore.merging.computing import Computing
from weft_kvstore.merging.step_gate import StepGate
from weft_kvstore.merging.work import LOT_PIECES, PIECE_CALLS, PIECE_ELEMENTS, PIECE_NODES
from weft_kvstore.shard.live_hyper import LiveHyper
from weft_kvstore.sharding.lots import LotKind
from weft_kvstore.sharding.routing import Routing
from weft_kvstore.units.key_rules import KeyRules


class Specs:
    """Those of one shard; `rule` takes the place of the description's. Raises DescriptionError for a rule that there is
    not."""

    def __init__(
        self,
        description: StoreDescription,
        routing: Routing,
        shard: int,
        *,
        live: LiveHyper,
        gate: StepGate | None,
        computing: Computing,
        rule: Rule | None = None,
    ) -> None:
        self._description = description
        self._routing = routing
        self._shard = shard
        self._live = live
        self._gate = gate
        self._computing = computing
        self._rule = rule or rule_of(description)

    def of_lot(self, number: int) -> LotSpec:
        """Of a lot that is no table, whose keys are updated as the first of them is."""
        description, lot = self._description, self._routing.lots[number]
        key = description.keys[lot.keys[0]]
        rule = self._rule_of(key)
        part = lot.parts[self._shard]
        by_slice = key.update is Update.RULE and lot.kind is LotKind.PLAIN and not rule.anywhere
        return LotSpec(
            number,
            part,
            description.keys,
            key.slots,
            key.update,
            description.merge,
            description.mode,
            self._staleness(key),
            rule,
            self._hyper(key),
            a_piece=LOT_PIECES * a_piece(description.rule),
            slices_a_piece=PIECE_CALLS * PIECE_NODES // nodes_of(description.rule) if by_slice else len(part),
            gate=self._gate,
            computing=self._computing,
            pushed=lot.pushed,
            pulled=lot.pulled,
            hold=self._live.agreement,
            is_whole=lot.kind is LotKind.WHOLE,
        )

    def of_unit(self, number: int) -> KeyRules:
        """Of a table."""
        description, lot = self._description, self._routing.lots[number]
        key = description.keys[lot.keys[0]]
        return KeyRules(
            key.key,
            number,
            key.priority,
            np.dtype(key.dtype),
            key.slots,
            key.update,
            description.merge,
            description.mode,
            self._staleness(key),
            self._rule_of(key),
            self._hyper(key),
            given=is_given(key),
            a_piece=a_piece(description.rule if key.rule is None else key.rule),
            gate=self._gate,
            hold=self._live.agreement,
            unscaled=lot.pushed is not None and lot.pushed.residual,
        )

    def _staleness(self, key: KeyDescription) -> int:
        return self._description.staleness if key.staleness is None else key.staleness

    def _rule_of(self, key: KeyDescription) -> Rule:
        return self._rule if key.rule is None and key.hyper is None else rule_of(self._description, key)

    def _hyper(self, key: KeyDescription) -> KeyHyper:
        return self._live.numbers(key, self._rule_of(key))


def a_piece(rule: str | Mapping[str, Any]) -> int:
    """Elements that the rule updates in some 50 ms at most; whole blocks, so that cutting changes no bit."""
    return PIECE_ELEMENTS * PIECE_NODES // nodes_of(rule) // VECTOR_BLOCK * VECTOR_BLOCK


def nodes_of(rule: str | Mapping[str, Any]) -> int:
    """Of a user's rule; `PIECE_NODES` where it has fewer, and for a built-in one."""
    nodes = () if isinstance(rule, str) or "graph" not in rule else rule["graph"]["nodes"]
    return max(len(nodes), PIECE_NODES)
