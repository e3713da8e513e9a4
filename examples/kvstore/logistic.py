"""Logistic regression on handwritten digits, by two workers that share its parameters through a store of two shards.

Four terminals, in any order:

    python -m weft_kvstore --description examples/kvstore/logistic.toml --shard 0
    python -m weft_kvstore --description examples/kvstore/logistic.toml --shard 1
    python examples/kvstore/logistic.py 0
    python examples/kvstore/logistic.py 1

Or all of it in one process: `python examples/kvstore/logistic.py local`. Needs scikit-learn, for its digits.
"""

from __future__ import annotations

import argparse
import threading
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from weft_kvstore import KVStore, StoreError

HERE = Path(__file__).parent
KEYS = ["weight", "bias"]
STEPS = 100
TRAINED = 1500
"""Of the 1,797 digits; the others are for evaluation."""


def train(store: KVStore, *, steps: int = STEPS) -> float:
    """Trains on this slot's share of the digits; returns how many of the others are then read aright."""
    pixels, digits = load_digits(return_X_y=True)
    x, y = (pixels / 16).astype(np.float32), digits.astype(np.int64)
    mine = slice(store.slot, TRAINED, store.slots)

    store.init("bias", np.zeros(10, np.float32))  # the same line in every worker; that of slot 0 counts
    weight, bias = store.pull(KEYS).result()
    for _ in range(steps):
        gradients = gradients_of(x[mine], y[mine], weight, bias)
        weight, bias = store.pushpull(KEYS, gradients).result()
    return float(np.mean((x[TRAINED:] @ weight + bias).argmax(axis=1) == y[TRAINED:]))


def gradients_of(x: np.ndarray, y: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> list[np.ndarray]:
    """Of the cross entropy of `x` (n, 64) and `y` (n), divided by what all workers have: shards add up."""
    scores = x @ weight + bias
    exponents = np.exp(scores - scores.max(axis=1, keepdims=True))
    error = exponents / exponents.sum(axis=1, keepdims=True)
    error[np.arange(len(y)), y] -= 1
    error /= TRAINED
    return [x.T @ error, error.sum(axis=0)]


def main() -> None:
    parser = argparse.ArgumentParser(description="Logistic regression over a store of parameters.")
    parser.add_argument("slot", help="0 or 1; or 'local' for both in this process, without shards")
    parser.add_argument("--description", type=Path, default=HERE / "logistic.toml", help="the store's description")
    arguments = parser.parse_args()
    try:
        if arguments.slot == "local":
            with KVStore.local(arguments.description) as store:
                other = threading.Thread(target=train, args=(store.at_slot(1),))
                other.start()
                report(store, train(store))
                other.join()
        else:
            with KVStore.connect(arguments.description, int(arguments.slot)) as store:
                report(store, train(store))
    except (StoreError, ValueError, OSError) as error:
        raise SystemExit(f"error: {error}") from None


def report(store: KVStore, accuracy: float) -> None:
    sent = store.statistics().bytes_sent
    print(f"slot {store.slot}: after {STEPS} steps {accuracy:.3f} of the digits are read aright; {sent:,} bytes sent")


if __name__ == "__main__":
    main()
