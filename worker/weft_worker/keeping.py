"""Brings parameters out of the store: all keys at one version, as one safetensors document."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import FIRST_EXCEPTION, wait

import numpy as np
from safetensors.numpy import save

from weft_kvstore.store import Array, Store, StoreTimeoutError


def pull_all(store: Store, keys: Iterable[str], version: int, timeout_s: float) -> dict[str, Array]:
    """Every key's value at `version`, asked for at once. Raises the first StoreError; StoreTimeoutError names keys."""
    futures = {key: store.pull(key, version) for key in keys}
    done, missing = wait(futures.values(), timeout_s, return_when=FIRST_EXCEPTION)
    for future in done:
        future.result()
    if missing:
        late = sorted(key for key, future in futures.items() if future in missing)
        raise StoreTimeoutError(f"no value of {late} at version {version} within {timeout_s:g} s")
    return {key: future.result() for key, future in futures.items()}


def document(values: Mapping[str, Array], job: str, step: int) -> bytes:
    """The safetensors document of `values`: tensors named as keys, metadata `job` and `step`."""
    whole = {key: np.asarray(value, order="C") for key, value in values.items()}
    return save(whole, metadata={"job": job, "step": str(step)})
