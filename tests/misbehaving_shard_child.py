"""A shard's child with rules that no shard should have to bear: one never ends, one takes all memory, one crashes."""

from __future__ import annotations

import ctypes
from typing import Any, NoReturn

from weft_kernels.rules.lookup import rules
from weft_kernels.rules.record import Rule
from weft_kvstore.serving import shard_process

main = shard_process.main


def _endless(*_: Any, **__: Any) -> NoReturn:
    while True:
        pass


def _greedy(*_: Any, **__: Any) -> NoReturn:
    held = []
    while True:
        held.append(bytearray(1 << 24))


def _crashing(*_: Any, **__: Any) -> None:
    ctypes.string_at(0)


def prepare() -> None:
    """Adds the rules to the built-in ones, under their names."""
    shard_process.prepare()
    found: Any = rules()
    for name, apply in (("endless", _endless), ("greedy", _greedy), ("crashing", _crashing)):
        found[name] = Rule(name=name, state={}, hyper={"lr": 0.1, "weight_decay": 0.0}, apply=apply)
