"""How a user writes a key's first value: a number, "given", the name of a law with its two numbers, or the long form.
Pure."""

from __future__ import annotations

import math
from typing import Any, Final, TypeAlias

import msgspec

from weft_graph.ir import GIVEN
from weft_graph.program import Update
from weft_kvstore.description.check import DescriptionError
from weft_kvstore.description.limits import check_drawn, check_first
from weft_kvstore.description.records import InitializerDescription
from weft_kvstore.structs import Reader

FirstForm: TypeAlias = float | str | dict[str, Any]

_initializers: Final[Reader[InitializerDescription]] = Reader(InitializerDescription)

_DRAWS: Final = {"uniform": ("RandomUniform", ("low", "high")), "normal": ("RandomNormal", ("mean", "scale"))}
"""Short names of initializers, and the attributes that their two numbers are."""


def initializer_of(value: FirstForm, dtype: str, update: Update, where: str) -> InitializerDescription:
    """Of a key of that type, whose values are made so by its update. Raises DescriptionError, which `where` begins."""
    if update is Update.GRADIENT:
        return InitializerDescription("ConstantOfShape", {"value": 0.0})
    if isinstance(value, str):
        if value != "given":
            raise DescriptionError(f'{where}: {value!r} is neither "given" nor a number, nor a table of numbers')
        return InitializerDescription(GIVEN, {})
    if not isinstance(value, dict):
        check_first(_finite(value, where), dtype, where)
        return InitializerDescription("ConstantOfShape", {"value": _finite(value, where)})
    drawn = _drawn(value, where)
    check_drawn(drawn, dtype, where)
    return drawn


def _drawn(value: dict[str, Any], where: str) -> InitializerDescription:
    """From `{"op_type": ..., "attributes": ...}`, or a law's name with its two numbers."""
    if "op_type" in value:
        try:
            return _initializers.from_builtins(value)
        except msgspec.ValidationError as error:
            raise DescriptionError(f"{where}: {error}") from None
    kind, numbers = next(iter(value.items()), ("nothing", None))
    if len(value) != 1 or kind not in _DRAWS or not isinstance(numbers, list | tuple) or len(numbers) != 2:
        raise DescriptionError(f"{where}: {{uniform = [low, high]}} or {{normal = [mean, deviation]}}, not {value}")
    op_type, attributes = _DRAWS[kind]
    return InitializerDescription(
        op_type, {name: _finite(number, where) for name, number in zip(attributes, numbers, strict=True)}
    )


def _finite(number: object, where: str) -> float:
    if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
        raise DescriptionError(f"{where}: a finite number, not {number!r}")
    return float(number)
