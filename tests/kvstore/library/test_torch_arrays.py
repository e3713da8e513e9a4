"""PyTorch's tensors as values: parameters are written, and what NumPy cannot have is refused with what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from weft_kvstore import Key, KVStore, StoreRefusedError, describe

WAIT_S = 10.0


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
