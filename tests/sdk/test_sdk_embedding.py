"""Embedding and EmbeddingBag: rows of a table, and means and sums of them, against plain NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft
from weft import nn, ops
from weft.read_expressions import expressions
from weft_graph.check import check
from weft_graph.json_form import graph_from_json, graph_to_json

TABLE = np.random.default_rng(3).standard_normal((10, 4)).astype(np.float32)
IDS = np.array([[1, 2, 2, 0], [9, 0, 0, 0], [0, 0, 0, 0], [3, 4, 5, 6]])
KEPT = {"bag.weight": TABLE, "look.weight": TABLE}


def ids(dtype: str = "int64") -> weft.Expression:
    return weft.input("ids", ("batch", 4), dtype)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_an_embedding_is_rows_of_its_table(dtype: str) -> None:
    rows = nn.Embedding(10, 4, name="look")(ids(dtype))
    assert rows.shape == ("batch", 4, 4)
    np.testing.assert_array_equal(rows.eval({"ids": IDS.astype(dtype)}, parameters=KEPT), TABLE[IDS])


@pytest.mark.parametrize("padding", [0, -1])
def test_padding_is_zeros_and_may_be_a_number_of_no_row(padding: int) -> None:
    fed = np.where(IDS == 0, padding, IDS)
    rows = nn.Embedding(10, 4, padding_idx=padding, name="look")(ids())
    expected = TABLE[IDS] * (IDS != 0)[..., None]
    np.testing.assert_array_equal(rows.eval({"ids": fed}, parameters=KEPT), expected)


@pytest.mark.parametrize("padding", [None, 0, -1])
@pytest.mark.parametrize("reduce", ["mean", "sum"])
def test_a_bag_is_the_mean_or_sum_of_what_is_no_padding(reduce: Any, padding: int | None) -> None:
    bag = nn.EmbeddingBag(10, 4, padding_idx=padding, mode=reduce, name="bag")(ids())
    assert bag.shape == ("batch", 4)
    fed = IDS if padding is None else np.where(IDS == 0, padding, IDS)
    present = np.ones(IDS.shape, bool) if padding is None else IDS != 0
    expected = (TABLE[IDS] * present[..., None]).sum(axis=1)
    if reduce == "mean":
        expected /= np.maximum(present.sum(axis=1, keepdims=True), 1)
    np.testing.assert_allclose(bag.eval({"ids": fed}, parameters=KEPT), expected, rtol=1e-6, atol=1e-7)


def test_a_bag_may_have_more_dimensions_before_it() -> None:
    bags = nn.EmbeddingBag(10, 4, padding_idx=0, name="bag")(weft.input("ids", ("batch", 2, 3), "int64"))
    assert bags.shape == ("batch", 2, 4)
    fed = np.array([[[1, 2, 0], [0, 0, 0]]])
    expected = np.stack([TABLE[[1, 2]].mean(axis=0), np.zeros(4)])[None]
    np.testing.assert_allclose(bags.eval({"ids": fed}, parameters=KEPT), expected, rtol=1e-6)


@pytest.mark.parametrize("layer", [nn.Embedding, nn.EmbeddingBag])
@pytest.mark.parametrize(("row_sparse", "lazy_update"), [(True, True), (False, True), (True, False)])
def test_how_it_travels_and_is_updated_is_part_of_the_graph(
    layer: type[nn.Embedding], row_sparse: bool, lazy_update: bool
) -> None:
    graph = layer(10, 4, padding_idx=0, row_sparse=row_sparse, lazy_update=lazy_update, name="bag")(ids()).graph()
    check(graph)
    for read in (graph_from_json(graph_to_json(graph)), expressions(graph, {})["bag"].graph()):
        assert [(each.row_sparse, each.lazy_update) for each in read.parameters] == [(row_sparse, lazy_update)]
        assert "weft" in {node.domain for node in read.nodes}


def test_gather_reads_along_an_axis() -> None:
    table = weft.constant(TABLE)
    np.testing.assert_array_equal(ops.gather(table, [3, -1]).eval(), TABLE[[3, 9]])
    np.testing.assert_array_equal(ops.gather(table, [[0, 2]], axis=1).eval(), TABLE[:, [[0, 2]]])


def test_a_wrong_id_is_refused_by_name() -> None:
    rows = nn.Embedding(10, 4, name="look")(ids())
    with pytest.raises(Exception, match="look") as caught:
        rows.eval({"ids": np.full((1, 4), 10)}, parameters=KEPT)
    assert "10" in str(caught.value)


def test_what_makes_no_sense_raises_where_it_is_written() -> None:
    with pytest.raises(weft.DTypeError, match=r"'look' takes ids of int32 or int64.*float32"):
        nn.Embedding(10, 4, name="look")(weft.input("x", ("batch",)))
    with pytest.raises(weft.ShapeError, match=r"'bag' takes bags of ids"):
        nn.EmbeddingBag(10, 4, name="bag")(weft.input("x", ("batch",), "int64"))
    with pytest.raises(ValueError, match="num_embeddings must be at least 1"):
        nn.Embedding(0, 4)
    with pytest.raises(weft.ArgumentError, match="mode is 'max'"):
        nn.EmbeddingBag(10, 4, mode="max")  # type: ignore[arg-type]  # the point
    with pytest.raises(weft.DTypeError, match="no element type 'float128'"):
        nn.Embedding(10, 4, dtype="float128", name="look")(ids())
