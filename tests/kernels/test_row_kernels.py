"""What picks rows by index and sums them by index, against plain Python, and what it says of an index that is none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from graph_strategies import examples
from weft_graph.ir import AttributeValue, Node
from weft_kernels.kernel import KernelContext
from weft_kernels.run import KernelError, run_node

Array = np.ndarray[Any, np.dtype[Any]]


def run(op_type: str, *inputs: Any, outputs: int = 1, **attributes: AttributeValue) -> tuple[Array, ...]:
    domain = "" if op_type == "Gather" else "weft"
    names = tuple(f"in{place}" for place in range(len(inputs)))
    node = Node(op_type, "look", names, tuple(f"out{place}" for place in range(outputs)), attributes, domain)
    return run_node(KernelContext(""), node, [np.asarray(array) for array in inputs])


def unique_rows(*ids: Any, rows: int, wraps: Any = None, padding: Any = None) -> tuple[Array, ...]:
    """`padding` has an id or None for each of the ids."""
    padding = padding or (None,) * len(ids)
    return run(
        "UniqueRows",
        *ids,
        outputs=1 + len(ids),
        rows=rows,
        readers=tuple(f"reader{place}" for place in range(len(ids))),
        wraps=wraps or (0,) * len(ids),
        padded=tuple(int(one is not None) for one in padding),
        padding_ids=tuple(one or 0 for one in padding),
    )


def test_rows_are_named_once_in_order_and_found_again() -> None:
    rows_ids, a, b = unique_rows([[7, 2], [7, 0]], np.array([-1, 2], dtype=np.int32), rows=9, wraps=(0, 1))
    assert rows_ids.tolist() == [0, 2, 7, 8, -1, -1]
    assert a.tolist() == [[2, 1], [2, 0]]
    assert b.tolist() == [3, 1]
    assert {array.dtype for array in (rows_ids, a, b)} == {np.dtype(np.int64)}


def test_padding_names_no_row_of_its_reader_and_a_row_of_another() -> None:
    rows_ids, a, b = unique_rows([3, 1, 3], [3], rows=4, padding=(3, None))
    assert rows_ids.tolist() == [1, 3, -1, -1]
    assert (a.tolist(), b.tolist()) == ([-1, 0, -1], [1])


@pytest.mark.parametrize("rows", [400, 1 << 40])
def test_few_rows_and_more_than_memory_holds_are_looked_up_alike(rows: int) -> None:
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 400, (50, 4)) * (rows // 400)
    rows_ids, index = unique_rows(ids, rows=rows)
    distinct, places = np.unique(ids, return_inverse=True)
    np.testing.assert_array_equal(rows_ids, [*distinct, *[-1] * (200 - len(distinct))])
    np.testing.assert_array_equal(index, places.reshape(50, 4))


def test_ids_may_be_one_and_may_be_none() -> None:
    rows_ids, one, none = unique_rows(5, np.zeros((0, 3), dtype=np.int64), rows=6)
    assert (rows_ids.tolist(), one.shape, one.tolist(), none.shape) == ([5], (), 0, (0, 3))
    assert unique_rows(np.zeros(0, dtype=np.int32), rows=6)[0].shape == (0,)
    assert unique_rows([9, 9], rows=6, padding=(9,))[0].tolist() == [-1, -1]


@st.composite
def lookups(draw: st.DrawFn) -> tuple[int, list[Array], list[int], list[int | None]]:
    """(rows, ids, wraps, padding): every id is a row's, or padding, or counts from the end where that is allowed."""
    rows = draw(st.sampled_from([1, 3, 12, 500]))
    ids, wraps, padding = [], [], []
    for _ in range(draw(st.integers(1, 3))):
        wrap = draw(st.booleans())
        pad = None if wrap else draw(st.one_of(st.none(), st.integers(-3, rows + 2)))
        elements = st.integers(-rows if wrap else 0, rows - 1)
        if pad is not None:
            elements = st.one_of(elements, st.just(pad))
        dtype = draw(st.sampled_from([np.int32, np.int64]))
        ids.append(
            draw(hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4), elements=elements))
        )
        wraps.append(int(wrap))
        padding.append(pad)
    return rows, ids, wraps, padding


@examples()
@given(lookups())
def test_every_id_finds_its_row(lookup: tuple[int, list[Array], list[int], list[int | None]]) -> None:
    rows, ids, wraps, padding = lookup
    rows_ids, *index = unique_rows(*ids, rows=rows, wraps=tuple(wraps), padding=tuple(padding))
    meant = []
    for given_ids, found, wrap, pad in zip(ids, index, wraps, padding, strict=True):
        assert found.shape == given_ids.shape
        for one, place in zip(given_ids.reshape(-1).tolist(), found.reshape(-1).tolist(), strict=True):
            if one == pad:
                assert place == -1
            else:
                meant.append(one % rows if wrap else one)
                assert rows_ids[place] == meant[-1]
    distinct = sorted(set(meant))
    assert rows_ids.tolist() == distinct + [-1] * (sum(map(np.size, ids)) - len(distinct))


@pytest.mark.parametrize(
    ("op_type", "inputs", "attributes", "message"),
    [
        ("Gather", (np.zeros((4, 2)), [0, 4]), {}, r"'look' \(Gather\): index 4 is outside \[-4, 4\)"),
        ("Gather", (np.zeros((4, 2)), [[0], [-3]]), {"axis": 1}, r"'look' \(Gather\): index -3 is outside \[-2, 2\)"),
        ("Gather", (np.zeros((0, 2)), [0]), {}, r"index 0 is outside \[0, 0\)"),
        ("Embedding", (np.zeros((4, 2)), [0, -1]), {}, r"'look' \(Embedding\): index -1 is outside \[0, 4\)"),
        ("Embedding", (np.zeros((4, 2)), [9, 4, 5]), {"padding_id": 9}, r"index 4 is outside \[0, 4\)"),
        ("Embedding", (np.zeros((4, 2)), [-1 << 63]), {"padding_id": -1}, r"index -9223372036854775808 is outside"),
    ],
)
def test_an_index_that_is_no_row_is_refused_by_node_and_index(
    op_type: str, inputs: tuple[Any, ...], attributes: dict[str, AttributeValue], message: str
) -> None:
    with pytest.raises(KernelError, match=message):
        run(op_type, *inputs, **attributes)


def test_unique_rows_says_which_node_of_the_users_reads_no_row() -> None:
    with pytest.raises(KernelError, match=r"index 6 is outside \[-6, 6\), read by node 'reader1'"):
        unique_rows([0], [1, 6], rows=6, wraps=(0, 1))
    with pytest.raises(KernelError, match=r"index -1 is outside \[0, 6\), read by node 'reader0'"):
        unique_rows([0, -1], [-1], rows=6, wraps=(0, 1))


def test_padding_gives_zeros_even_of_a_table_that_is_not_finite() -> None:
    rows = np.full((3, 2), np.nan, dtype=np.float32)
    assert run("Embedding", rows, [1, 1], padding_id=1)[0].tolist() == [[0, 0], [0, 0]]
    assert run("Embedding", np.zeros((0, 2)), [[5]], padding_id=5)[0].tolist() == [[[0, 0]]]
    assert np.isnan(run("Embedding", rows, [1])[0]).all()


def test_gradients_of_a_row_are_added_in_the_order_of_its_ids() -> None:
    """In float32 1 is lost beside 1e8, so that each order of these three has a sum of its own."""
    sums = []
    for order in ([0, 1, 2], [0, 2, 1]):
        gradient = np.array([1e8, 1.0, -1e8], dtype=np.float32)[order]
        sums.append(run("GatherGrad", gradient, np.zeros(2, dtype=np.float32), [1, 1, 1], wraps=0)[0].tolist())
    assert sums == [[0, 0], [0, 1]]


def test_many_gradients_are_added_like_a_few() -> None:
    """More elements than are added at once, with an id of each part in every other part."""
    rng = np.random.default_rng(0)
    ids, gradient = rng.integers(0, 700, 30_000), rng.standard_normal((30_000, 7)).astype(np.float32)
    expected = np.zeros((700, 7), dtype=np.float32)
    np.add.at(expected, ids, gradient)
    (found,) = run("GatherGrad", gradient, expected, ids, wraps=0)
    np.testing.assert_array_equal(found, expected)


def test_half_precision_is_rounded_once() -> None:
    """Added one by one in float16 ones stop at 2048."""
    ones, table = np.ones((4096, 1), dtype=np.float16), np.zeros((2, 1), dtype=np.float16)
    assert run("GatherGrad", ones, table, np.zeros(4096, dtype=np.int64), wraps=0)[0].tolist() == [[4096], [0]]


def test_a_gradients_index_counts_from_the_end_where_it_says_so() -> None:
    """Beside padding too: what is read by Gather and what by Embedding is the node's to say."""
    gradient, table = np.ones((2, 1)), np.zeros((3, 1))
    assert run("GatherGrad", gradient, table, [-1, 0], wraps=1)[0].tolist() == [[1], [0], [1]]
    assert run("GatherGrad", gradient, table, [-1, 0], wraps=1, padding_id=0)[0].tolist() == [[0], [0], [1]]
    with pytest.raises(KernelError, match=r"index -1 is outside \[0, 3\)"):
        run("GatherGrad", gradient, table, [-1, 0], wraps=0)


def test_a_gradient_of_padding_belongs_to_no_row() -> None:
    gradient, table = np.ones((3, 2)), np.zeros((4, 2))
    assert run("GatherGrad", gradient, table, [2, 0, 2], wraps=0, padding_id=2)[0].tolist() == [
        [1, 1],
        [0, 0],
        [0, 0],
        [0, 0],
    ]
    assert run("GatherGrad", gradient, table, [-1, -1, 3], wraps=0, padding_id=-1)[0][3].tolist() == [1, 1]


@pytest.mark.parametrize("rows", [30, 100_000])
def test_a_device_finds_the_same_rows(rows: int) -> None:
    pytest.importorskip("cupy", reason="the stand-in has CuPy's names; weft[cuda-compile] installs it")
    import strict_arrays

    a, b = np.array([[3, -1], [5, 3]], dtype=np.int32), np.array([3, 7, 2])
    flags = {"wraps": (1, 0), "padded": (0, 1), "padding_ids": (0, 3)}
    attributes: dict[str, AttributeValue] = {"rows": rows, "readers": ("x", "y"), **flags}
    node = Node("UniqueRows", "look", ("a", "b"), ("rows_ids", "i", "j"), attributes, "weft")
    context = KernelContext("", xp=strict_arrays.strict)
    found = run_node(context, node, [strict_arrays.to_device(ids) for ids in (a, b)])
    for array, expected in zip(found, run_node(KernelContext(""), node, [a, b]), strict=True):
        np.testing.assert_array_equal(strict_arrays.to_host(array), expected)
    with pytest.raises(KernelError, match=r"index 300000 is outside .* read by node 'y'"):
        run_node(context, node, [strict_arrays.to_device(ids) for ids in (a, b * 100_000)])
