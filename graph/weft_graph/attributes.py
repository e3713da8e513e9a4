"""Attributes as the Python type that the schema promises: the checker has made sure, these functions tell mypy."""

from __future__ import annotations

from weft_graph.ir import AttributeValue, Subgraph


def as_int(value: AttributeValue | None) -> int:
    """The value of an int attribute. Raises TypeError for another type."""
    if isinstance(value, int):
        return int(value)
    raise TypeError(f"expected an int attribute, got {value!r}")


def as_float(value: AttributeValue | None) -> float:
    """The value of a float attribute; an int counts as one. Raises TypeError for another type."""
    if isinstance(value, int | float):
        return float(value)
    raise TypeError(f"expected a float attribute, got {value!r}")


def as_str(value: AttributeValue | None) -> str:
    """The value of a string attribute. Raises TypeError for another type."""
    if isinstance(value, str):
        return value
    raise TypeError(f"expected a string attribute, got {value!r}")


def as_ints(value: AttributeValue | None) -> tuple[int, ...]:
    """The value of an attribute that is a list of ints. Raises TypeError for another type."""
    if isinstance(value, tuple) and all(isinstance(item, int) for item in value):
        return tuple(int(item) for item in value)
    raise TypeError(f"expected a tuple of ints, got {value!r}")


def as_texts(value: AttributeValue | None) -> tuple[str, ...]:
    """The value of an attribute that is a list of strings. Raises TypeError for another type."""
    if isinstance(value, tuple) and all(isinstance(item, str) for item in value):
        return tuple(str(item) for item in value)
    raise TypeError(f"expected a tuple of strings, got {value!r}")


def as_floats(value: AttributeValue | None) -> tuple[float, ...]:
    """The value of an attribute that is a list of numbers. Raises TypeError for another type."""
    if isinstance(value, tuple) and all(isinstance(item, int | float) for item in value):
        return tuple(float(item) for item in value)
    raise TypeError(f"expected a tuple of floats, got {value!r}")


def as_body(value: AttributeValue | None) -> Subgraph:
    """The value of an attribute that is a body. Raises TypeError for another type."""
    if isinstance(value, Subgraph):
        return value
    raise TypeError(f"expected a body, got {value!r}")
