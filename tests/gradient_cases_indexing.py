"""Cases of the operators that gather, scatter, choose and order elements by number."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from gradient_case import Array, GradientCase, Reference, distinct, floats, integers
from weft_graph.ir import AttributeValue

COMBINE: dict[str, Any] = {"add": jnp.add, "mul": jnp.multiply, "max": jnp.maximum, "min": jnp.minimum}


def gathering_cases() -> list[GradientCase]:
    return [*_gather_elements_cases(), *_gather_nd_cases(), *_top_k_cases()]


def scattering_cases() -> list[GradientCase]:
    return [*_scatter_elements_cases(), *_scatter_nd_cases()]


def _beside(indices: Array, axis: int) -> tuple[Any, ...]:
    """NumPy's index of the elements that `indices` name along `axis`."""
    places: list[Any] = list(np.indices(indices.shape))
    places[axis] = indices
    return tuple(places)


def _gather_elements_cases() -> list[GradientCase]:
    def case(name: str, data: Array, indices: Array, axis: int) -> GradientCase:
        at = _beside(indices, axis)
        return GradientCase(name, "GatherElements", (data, indices), lambda x: x[at], {"axis": axis})

    often = np.array([[0, 0, 2], [-1, 0, 1]])
    return [
        case("rows", floats(3, 3), often, 0),
        case("columns_int32", floats(2, 3), often.astype(np.int32), 1),
        case("last_of_three", floats(2, 3, 4), np.array([[[3, -4], [0, 0]], [[1, 1], [1, 1]]]), -1),
        case("narrower_beside", floats(4, 5), np.array([[0, 3]]), 0),
        case("none", floats(2, 3), np.zeros((2, 0), dtype=np.int64), 1),
        case("vector", floats(4), integers(3, 3, -1), 0),
    ]


def _gather_nd_cases() -> list[GradientCase]:
    def case(name: str, data: Array, indices: Array, batch_dims: int = 0) -> GradientCase:
        def reference(x: Any) -> Any:
            size = x.shape[:batch_dims]
            rows = x.reshape(-1, *x.shape[batch_dims:])
            given = indices.reshape(len(rows), *indices.shape[batch_dims:])
            taken = [row[tuple(np.moveaxis(index, -1, 0))] for row, index in zip(rows, given, strict=True)]
            return jnp.stack(taken).reshape(*size, *taken[0].shape)

        attributes: dict[str, AttributeValue] = {"batch_dims": batch_dims}
        return GradientCase(name, "GatherND", (data, indices), reference, attributes)

    return [
        case("elements", floats(2, 3), np.array([[0, 1], [1, -1], [0, 1]])),
        case("slices", floats(2, 3, 2), np.array([[[1], [0]], [[1], [-2]]])),
        case("batch", floats(2, 3, 2), np.array([[[2], [0]], [[2], [2]]]), 1),
        case("two_batches", floats(2, 2, 3), np.array([[[1], [1]], [[0], [-1]]]), 2),
        case("no_tuples", floats(2, 3), np.zeros((0, 1), dtype=np.int64)),
    ]


def _top_k_cases() -> list[GradientCase]:
    def largest(k: int, axis: int) -> Reference:
        return lambda x: jnp.flip(jnp.sort(x, axis=axis), axis).take(np.arange(k), axis=axis)

    return [
        GradientCase("last", "TopK", (distinct(2, 5), integers(3)), largest(3, -1)),
        GradientCase("first_axis", "TopK", (distinct(4, 3), integers(2)), largest(2, 0), {"axis": 0}),
        GradientCase(
            "smallest", "TopK", (distinct(2, 5), integers(2)), lambda x: jnp.sort(x)[:, :2], {"largest": 0, "sorted": 0}
        ),
        GradientCase("none", "TopK", (distinct(2, 5), integers(0)), lambda x: x[:, :0]),
    ]


def _in_order(x: Any, at: tuple[Any, ...], updates: Any, reduction: str) -> Any:
    """One update after the other, so that JAX's rule for each pair of elements is all that counts."""
    places = [np.broadcast_to(place, at[0].shape).reshape(-1) for place in at]
    rows = updates.reshape(len(places[0]), *x.shape[len(at) :])
    for number, place in enumerate(zip(*places, strict=True)):
        x = x.at[place].set(rows[number] if reduction == "none" else COMBINE[reduction](x[place], rows[number]))
    return x


def _scatter_elements_cases() -> list[GradientCase]:
    def case(name: str, data: Array, indices: Array, updates: Array, axis: int, reduction: str) -> GradientCase:
        at = _beside(indices, axis)
        attributes: dict[str, AttributeValue] = {"axis": axis, "reduction": reduction}
        inputs = (data, indices, updates)
        return GradientCase(name, "ScatterElements", inputs, lambda x, u: _in_order(x, at, u, reduction), attributes)

    once, often = np.array([[0, 2], [1, -3]]), np.array([[1, 1, 0], [-1, 2, 2]])
    apart = distinct(3, 5)
    return [
        case("replace", floats(2, 3), once, floats(2, 2, seed=1), 1, "none"),
        case("replace_rows_int32", floats(4, 3), once.astype(np.int32)[:1], floats(1, 2, seed=1), 0, "none"),
        case("add", floats(2, 3), often, floats(2, 3, seed=1), 1, "add"),
        case("add_nothing", floats(2, 3), often[:, :0], floats(2, 0), 1, "add"),
        case("mul", floats(2, 3), often, floats(2, 3, seed=1), 1, "mul"),
        case("mul_zeros", floats(2, 3), often, np.array([[0.0, 2, 3], [4, 0, 0]]), 1, "mul"),
        case("max", apart[:2, :3], often, apart[:2, 2:], 1, "max"),
        case("min", apart[:2, :3], often, apart[:2, 2:], 1, "min"),
    ]


def _scatter_nd_cases() -> list[GradientCase]:
    def case(name: str, data: Array, indices: Array, updates: Array, reduction: str) -> GradientCase:
        at = tuple(np.moveaxis(indices, -1, 0))
        inputs = (data, indices, updates)
        reference: Reference = lambda x, u: _in_order(x, at, u, reduction)  # noqa: E731
        return GradientCase(name, "ScatterND", inputs, reference, {"reduction": reduction})

    rows, apart = np.array([[1], [-1], [1]]), distinct(6, 4)
    return [
        case("replace", floats(3, 2), rows[:2], floats(2, 2, seed=1), "none"),
        case("replace_elements", floats(2, 3), np.array([[[0, 1], [1, -1]]]), floats(1, 2, seed=1), "none"),
        case("add", floats(3, 2), rows, floats(3, 2, seed=1), "add"),
        case("mul", floats(3, 2), rows, floats(3, 2, seed=1), "mul"),
        case("max", apart[:3], rows, apart[3:], "max"),
        case("min", apart[:3], rows, apart[3:], "min"),
    ]


def choosing_cases() -> list[GradientCase]:
    return [*_compress_cases(), *_unique_cases(), *_reverse_sequence_cases()]


def _compress_cases() -> list[GradientCase]:
    def case(name: str, data: Array, chosen: list[bool], axis: int | None) -> GradientCase:
        places = np.flatnonzero(chosen)
        attributes: dict[str, AttributeValue] = {} if axis is None else {"axis": axis}
        condition = np.array(chosen, dtype=bool)
        return GradientCase(name, "Compress", (data, condition), lambda x: x.take(places, axis=axis), attributes)

    return [
        case("rows", floats(3, 2), [True, False, True], 0),
        case("short_condition", floats(2, 3), [False, True], -1),
        case("flat", floats(2, 3), [True, False, False, True, True], None),
        case("nothing", floats(2, 3), [False, False], 0),
    ]


def _unique_cases() -> list[GradientCase]:
    repeated = np.array([2.0, 1, 1, 3, 4, 3])
    return [
        GradientCase("sorted", "Unique", (repeated,), lambda x: x[np.array([1, 0, 3, 4])], smooth=False),
        GradientCase(
            "as_found", "Unique", (repeated.reshape(2, 3),), lambda x: x.reshape(-1)[np.array([0, 1, 3, 4])],
            {"sorted": 0}, smooth=False,
        ),
        GradientCase(
            "rows", "Unique", (np.array([[1.0, 0], [1, 0], [0.5, 3]]),), lambda x: x[np.array([2, 0])], {"axis": 0},
            smooth=False,
        ),
        GradientCase("apart", "Unique", (distinct(2, 3),), lambda x: jnp.sort(x.reshape(-1))),
    ]  # fmt: skip


def _reverse_sequence_cases() -> list[GradientCase]:
    def case(name: str, lengths: Array, *, time: int) -> GradientCase:
        def reference(x: Any) -> Any:
            samples = x if time == 1 else x.swapaxes(0, 1)
            turned = [jnp.concatenate([s[:n][::-1], s[n:]]) for s, n in zip(samples, lengths.tolist(), strict=True)]
            return jnp.stack(turned) if time == 1 else jnp.stack(turned, axis=1)

        attributes: dict[str, AttributeValue] = {"batch_axis": 1 - time, "time_axis": time}
        return GradientCase(name, "ReverseSequence", (floats(3, 3, 2), lengths), reference, attributes)

    return [case("time_first", integers(1, 3, 2), time=0), case("batch_first", integers(0, 2, 3), time=1)]
