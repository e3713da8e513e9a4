"""Arrays that a call takes and fills: of NumPy, PyTorch, JAX and GPUs, and several of one key."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch

import strict_copies
from face_stores import WAIT_S, faces
from strict_copies import StrictCupy
from weft_kvstore import Key, KVStore, StoreDescription, StoreError, StoreRefusedError, describe
from weft_kvstore.library.user_arrays import checked, checked_out

FLOAT = np.dtype(np.float32)


def one_key(*, slots: int = 1, shape: tuple[int, ...] = (4,)) -> StoreDescription:
    table = Key(shape=(9, 2), rows=True, initializer=0.0)
    return describe({"w": Key(shape=shape, initializer=0.0), "t": table}, rule="sgd", lr=1.0, slots=slots)


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> StrictCupy:
    module = StrictCupy()
    monkeypatch.setattr("weft_kvstore.library.user_arrays.import_cupy", lambda: module)
    return module


def test_nothing_is_copied_that_need_not_be() -> None:
    array = np.ones((3, 2), np.float32)
    assert checked(array, FLOAT, (3, 2), "here") is array
    theirs = jnp.ones((3, 2), np.float32)
    shared = checked(theirs, FLOAT, (3, 2), "here")
    assert shared.ctypes.data == theirs.unsafe_buffer_pointer()
    assert checked(array.T, FLOAT, (2, 3), "here").flags.c_contiguous
    assert checked(np.float32(1), FLOAT, (), "here").shape == ()


@pytest.mark.parametrize("value", [[1, 2.5], (1, 2.5), np.array([1, 2.5], np.float32), jnp.array([1, 2.5], np.float32)])
def test_lists_and_arrays_of_other_libraries_are_values(value: Any) -> None:
    assert checked(value, FLOAT, (2,), "here").tolist() == [1.0, 2.5]


@pytest.mark.parametrize(
    ("value", "dtype", "told"),
    [
        ([1.5], np.int64, "here: whole numbers are expected, not list of float64"),
        ([300], np.int8, "here: Python integer 300 out of bounds for int8"),
        (np.array([object()]), np.float32, r"here: it is object\[1\], the key float32\[1\]"),
        (np.ones(1, ">f4"), np.float32, r"here: it is >f4\[1\], the key float32\[1\]"),
        ({"a": 1}, np.float32, "here: dict cannot be float32"),
    ],
)
def test_what_is_no_value_is_refused(value: Any, dtype: Any, told: str) -> None:
    with pytest.raises(StoreRefusedError, match=told):
        checked(value, np.dtype(dtype), (1,), "here")


def test_an_array_that_cannot_be_written_is_no_place_for_a_value() -> None:
    with pytest.raises(StoreRefusedError, match="out: "):
        checked_out(jnp.ones(3, np.float32), FLOAT, (3,), "here")


class Elsewhere:
    """An array of a device that nothing here knows."""

    def __dlpack__(self, **_: object) -> Any:
        raise AssertionError("its memory is not the host's")

    def __dlpack_device__(self) -> tuple[int, int]:
        return (8, 0)


def test_memory_of_an_unknown_device_is_refused() -> None:
    with pytest.raises(StoreRefusedError, match="here: Elsewhere is in the memory of a device"):
        checked(Elsewhere(), FLOAT, (1,), "here")


def test_a_gpus_gradient_is_sent_once_it_was_computed_and_copied(cupy: StrictCupy) -> None:
    with faces("network", one_key()) as (store,):
        gradient = strict_copies.Array(np.zeros(4, np.float32))
        gradient.compute(2.0)  # begun, not done
        assert store.pushpull("w", gradient).result(WAIT_S).tolist() == [-2.0] * 4
        assert cupy.cuda.allocated == 16


def test_a_value_is_pulled_into_a_gpus_array_behind_what_reads_it_still(cupy: StrictCupy) -> None:
    with faces("local", one_key()) as (store,):
        out, kept = strict_copies.Array(np.ones(4, np.float32)), np.zeros(4, np.float32)
        strict_copies.current_stream().put(lambda: np.copyto(kept, out.held))  # a kernel that reads the old value
        assert store.pull("w", out=out).result(WAIT_S) is out
        assert (kept.tolist(), out.held.tolist()) == ([1.0] * 4, [0.0] * 4)
        store.push("w", out)
        both = [strict_copies.Array(np.ones(4, np.float32)), None]
        assert store.pull(["w"], out=both[:1]).result(WAIT_S)[0] is both[0]


def test_rows_and_ids_may_be_a_gpus(cupy: StrictCupy) -> None:
    with faces("local", one_key()) as (store,):
        ids, rows = strict_copies.Array(np.array([3, 1], np.int32)), strict_copies.Array(np.ones((2, 2), np.float32).T)
        store.push_rows("t", ids, rows).result(WAIT_S)
        out = strict_copies.Array(np.zeros((2, 2), np.float32))
        store.pull_rows("t", ids, out=out).result(WAIT_S)
        assert np.all(out.held == -1.0)
        assert store.pushpull_rows("t", ids, rows, out=out).result(WAIT_S) is out
        assert np.all(out.held == -2.0)
        others = strict_copies.Array(np.array([0, 1, 8], np.int64))
        found = store.pushpull_rows("t", [[1, 1]], np.ones((1, 2, 2), np.float32), others).result(WAIT_S)
        assert found.tolist() == [[0.0, 0.0], [-4.0, -4.0], [0.0, 0.0]]
        wrong = store.pushpull_rows("t", strict_copies.Array(np.array([9])), np.ones((1, 2), np.float32))
        with pytest.raises(StoreRefusedError, match="pushpull_rows of key 't': id 9: the table has rows 0 to 8"):
            wrong.result(WAIT_S)


def test_ids_of_a_gpu_that_do_not_fit_fail_the_step_of_all_tables_of_the_call(cupy: StrictCupy) -> None:
    tables = {name: Key(shape=(4, 2), rows=True, initializer=0.0) for name in ("t", "u")}
    one, ids = np.ones((1, 2), np.float32), strict_copies.Array
    with KVStore.local(describe(tables, rule="sgd", lr=1.0)) as store:
        for call in (store.push_rows, store.pushpull_rows):
            with pytest.raises(StoreRefusedError, match=r"key .u.: id 9"):
                call(["t", "u"], [ids(np.array([1])), ids(np.array([9]))], [one, one]).result(WAIT_S)
            with pytest.raises(StoreRefusedError, match="has to be pushed again, with step="):
                store.push_rows("t", [1], one)
            step = store.steps("t") - 1
            store.push_rows(["t", "u"], [[1], [3]], [one, one], step=step).result(WAIT_S)
            assert store.pull_rows("t", [1]).result(WAIT_S).tolist() == [[-1.0 - step] * 2]


def test_a_gpus_array_that_does_not_fit_is_refused_before_it_is_copied(cupy: StrictCupy) -> None:
    with faces("local", one_key()) as (store,):
        with pytest.raises(StoreRefusedError, match=r"it is float64\[4\], the key float32\[4\]"):
            store.push("w", strict_copies.Array(np.zeros(4)))
        assert (cupy.cuda.allocated, store.steps("w")) == (0, 0)


def test_a_copy_that_breaks_fails_the_push_and_the_pull_that_waits_for_it(
    cupy: StrictCupy, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("an illegal memory access")

    with faces("local", one_key()) as (store,):
        monkeypatch.setattr(strict_copies.Event, "synchronize", broken)
        pushed = store.push("w", strict_copies.Array(np.zeros(4, np.float32)))
        for future in (pushed, store.pull("w")):
            with pytest.raises(StoreError, match="a copy between GPU and host failed: an illegal memory access"):
                future.result(WAIT_S)


def test_a_gpus_array_without_cupy_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> None:
        raise ImportError("No module named 'cupy'")

    monkeypatch.setattr("weft_kvstore.library.user_arrays.import_cupy", absent)
    with faces("local", one_key()) as (store,), pytest.raises(StoreError, match=r"pip install 'weft\[cuda\]'"):
        store.push("w", strict_copies.Array(np.zeros(4, np.float32)))


def test_a_program_without_a_gpus_array_loads_no_cupy_and_the_package_loads_nothing() -> None:
    program = (
        "import sys, weft_kvstore; assert 'numpy' not in sys.modules and 'zmq' not in sys.modules;"
        "from weft_kvstore import KVStore, Key, describe;"
        "store = KVStore.local(describe({'w': Key(shape=(2,), initializer=0.0)}, rule='sgd', lr=1.0));"
        "assert store.pushpull('w', [1, 2]).result().tolist() == [-1, -2]; store.close();"
        "assert not {'cupy', 'torch', 'weft.api', 'typer', 'pydantic'} & set(sys.modules), sorted(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("kind", ["local", "network"])
@pytest.mark.parametrize("shape", [(2, 3), (), (0, 3)])
def test_arrays_that_the_store_gave_out_cannot_be_resized_to_other_bytes(kind: str, shape: tuple[int, ...]) -> None:
    with faces(kind, one_key(slots=2, shape=shape)) as stores:
        for store in stores:
            for array in (store.gradient_buffer("w"), store.value_buffer("w")):
                with pytest.raises(ValueError, match="does not own its data"):
                    array.resize((7,), refcheck=False)
            gradient, out = store.gradient_buffer("w"), store.value_buffer("w")
            assert store.gradient_buffer("w") is gradient
            gradient[...] = 1.0
            store.push("w", gradient)
            assert out.shape == shape
        for store in stores:
            out = store.value_buffer("w")
            store.pull("w", out=out).result(WAIT_S)
            assert out.tolist() == np.full(shape, -2.0).tolist()


@pytest.mark.parametrize("kind", ["local", "network"])
def test_an_array_that_was_given_another_shape_is_refused_and_its_bytes_stay(kind: str) -> None:
    """The same bytes in another shape are no other memory, so NumPy does it; the store says what is wrong."""
    with faces(kind, one_key(shape=(2, 3))) as (store,):
        gradient = store.gradient_buffer("w")
        gradient.resize((3, 2), refcheck=False)
        with pytest.raises(StoreRefusedError, match=r"key 'w'.*float32\[3, 2\], the key float32\[2, 3\]"):
            store.push("w", gradient)
        gradient.resize((2, 3), refcheck=False)
        gradient[...] = 1.0
        store.push("w", gradient)
        assert store.pull("w").result(WAIT_S).tolist() == [[-1.0] * 3] * 2


STORE = describe(
    {
        "w": Key(shape=(3,), initializer=0.0),
        "m": Key(shape=(2, 3), initializer=0.0),
        "scalar": Key(shape=(), initializer=0.0),
        "half": Key(shape=(2,), dtype="float16", initializer=0.0),
    },
    rule="sgd",
    lr=1.0,
)


def full(number: float, shape: tuple[int, ...] = (3,), dtype: str = "float32") -> np.ndarray[Any, Any]:
    return np.full(shape, number, dtype)


@pytest.mark.parametrize("kind", ["network", "local"])
def test_gradients_of_one_key_are_added_up_and_values_come_to_each_array(kind: str) -> None:
    with faces(kind, STORE) as (store,):
        first, second = full(9), full(9)
        store.push("w", [full(1), torch.full((3,), 2.0), full(4)]).result(WAIT_S)
        found = store.pull("w", out=[first, second]).result(WAIT_S)
        assert found[0] is first
        assert found[1] is second
        assert first.tolist() == second.tolist() == [-7, -7, -7]
        assert store.steps("w") == 1


@pytest.mark.parametrize("kind", ["network", "local"])
def test_of_a_list_of_keys_each_may_have_several(kind: str) -> None:
    with faces(kind, STORE) as (store,):
        outs = [[full(9), torch.full((3,), 9.0)], full(9, (2, 3))]
        gradients = [[full(1), full(2)], full(5, (2, 3))]
        found = store.pushpull(["w", "m"], gradients, out=outs).result(WAIT_S)
        assert [array.tolist() for array in found[0]] == [[-3] * 3] * 2
        assert found[1] is outs[1]
        assert outs[1].tolist() == [[-5] * 3] * 2
        assert outs[0][1].tolist() == [-3] * 3


def test_a_list_of_numbers_or_of_rows_is_one_array() -> None:
    """Of a key of n dimensions a list of arrays of n dimensions is several; any other list is the value itself."""
    with faces("local", STORE) as (store,):
        assert store.pushpull("w", [1, 2, 3]).result(WAIT_S).tolist() == [-1, -2, -3]
        assert store.pushpull("w", [np.float32(1)] * 3).result(WAIT_S).tolist() == [-2, -3, -4]
        assert store.pushpull("m", [[1, 2, 3], [4, 5, 6]]).result(WAIT_S).tolist() == [[-1, -2, -3], [-4, -5, -6]]
        assert store.pushpull("scalar", [full(1, ()), full(2, ())]).result(WAIT_S) == -3
        with pytest.raises(StoreRefusedError, match="key 'w'"):
            store.push("w", [])


def test_halves_are_added_up_in_float32() -> None:
    """2048 + 1 is 2048 in float16, so sixteen ones would be lost one by one."""
    with faces("local", STORE) as (store,):
        parts = [full(2048, (2,), "float16")] + [full(1, (2,), "float16")] * 16
        assert store.pushpull("half", parts).result(WAIT_S).tolist() == [-2064, -2064]


def test_what_was_handed_over_is_not_written() -> None:
    with faces("local", STORE) as (store,):
        parts = [full(1), full(2)]
        store.push("w", parts).result(WAIT_S)
        assert [part.tolist() for part in parts] == [[1] * 3, [2] * 3]


@pytest.mark.parametrize(
    ("gradient", "told"),
    [
        ([full(1), full(1, (4,))], r"key 'w': gradient 1: it is float32\[4\], the key float32\[3\]"),
        ([full(1), full(1, (3,), "float64")], r"key 'w': gradient 1: it is float64\[3\]"),
    ],
)
def test_each_of_several_is_checked_before_anything_is_begun(gradient: Any, told: str) -> None:
    with faces("local", STORE) as (store,):
        with pytest.raises(StoreRefusedError, match=told):
            store.pushpull("w", gradient)
        with pytest.raises(StoreRefusedError, match=r"key 'w': out: it is float32\[4\]"):
            store.pushpull("w", full(1), out=[full(0), full(0, (4,))])
        with pytest.raises(StoreRefusedError, match="1 keys take a list of as many values, not 2 values"):
            store.pull(["w"], out=[[full(0), full(0)], [full(0), full(0)]])
        assert store.steps("w") == 0


@pytest.fixture
def store() -> Iterator[KVStore]:
    keys = {"w": Key(shape=(2, 2), initializer=1.0), "t": Key(shape=(3, 2), rows=True, initializer=1.0)}
    with KVStore.local(describe(keys, rule="sgd", lr=1.0)) as one:
        yield one


def test_a_parameter_is_written_and_keeps_its_gradient(store: KVStore) -> None:
    parameter = torch.nn.Parameter(torch.zeros(2, 2))
    (parameter * 3).sum().backward()
    assert parameter.grad is not None
    assert store.pushpull("w", parameter.grad, out=parameter).result(WAIT_S) is parameter
    assert parameter.tolist() == [[-2.0, -2.0]] * 2
    assert (parameter.requires_grad, parameter.grad.tolist()) == (True, [[3.0, 3.0]] * 2)
    rows = torch.nn.Parameter(torch.zeros(1, 2))
    assert store.pull_rows("t", [2], out=rows).result(WAIT_S) is rows
    assert rows.tolist() == [[1.0, 1.0]]
    assert store.pushpull_rows("t", [2], torch.ones(1, 2), out=rows).result(WAIT_S) is rows
    assert rows.tolist() == [[0.0, 0.0]]


REFUSED: dict[str, tuple[Callable[[], torch.Tensor], str]] = {
    "bfloat16": (lambda: torch.zeros(2, 2, dtype=torch.bfloat16), r"bfloat16, which NumPy .* \.to\(torch\.\w+\)"),
    "float8": (
        lambda: torch.zeros(2, 2, dtype=torch.float8_e5m2),
        r"float8_e5m2, which NumPy .* \.to\(torch\.\w+\)",
    ),
    "sparse": (lambda: torch.zeros(2, 2).to_sparse(), r"a sparse tensor \(sparse_coo\): .* \.to_dense\(\)"),
    "computed": (lambda: torch.zeros(2, 2, requires_grad=True) * 2, r"requires a gradient: .* \.detach\(\)"),
    "negated": (lambda: torch.zeros(2, 2, dtype=torch.complex64).conj().imag, r"negated: .* \.resolve_neg\(\)"),
    "meta": (lambda: torch.zeros(2, 2, device="meta"), "meta"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_tensor_that_numpy_cannot_have_is_refused_with_what_to_do(store: KVStore, kind: str) -> None:
    make, told = REFUSED[kind]
    with pytest.raises(StoreRefusedError, match=f"push of key 'w': gradient: .*{told}"):
        store.push("w", make())
    with pytest.raises(StoreRefusedError, match=f"pull of key 'w': out: .*{told}"):
        store.pull("w", out=make())
    with pytest.raises(StoreRefusedError, match=f"pull_rows of key 't': ids: .*{told}"):
        store.pull_rows("t", make())
    assert store.steps("w") == 0


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state")
def test_a_sparse_tensor_in_rows_is_refused_too(store: KVStore) -> None:
    with pytest.raises(StoreRefusedError, match=r"a sparse tensor \(sparse_csr\): make it dense first"):
        store.push("w", torch.zeros(2, 2).to_sparse_csr())


def test_a_tensor_of_another_type_is_told_the_conversion_that_it_has(store: KVStore) -> None:
    with pytest.raises(StoreRefusedError, match=r"the key float32\[2, 2\]; convert it with \.to\(torch\.float32\)"):
        store.push("w", torch.zeros(2, 2, dtype=torch.float64))
