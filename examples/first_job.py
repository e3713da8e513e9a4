"""A first own job: two workers learn whether a product is positive, on a cluster that `weft up` started.

Run it in the directory in which `weft up` runs: the workers read points.npz from there.
"""

from __future__ import annotations

import numpy as np

import weft

x = np.random.default_rng(0).standard_normal((2000, 20), dtype=np.float32)
np.savez("points.npz", x=x, y=(x[:, 0] * x[:, 1] > 0).astype(np.int64))  # is the product positive?

net = weft.nn.Sequential(weft.nn.Linear(20, 64), weft.nn.ReLU(), weft.nn.Linear(64, 2))
scores, y = net(weft.input("x", ("batch", 20))), weft.input("y", ("batch",), "int64")
loss, accuracy = weft.nn.cross_entropy(scores, y), weft.nn.accuracy(scores, y)

data = weft.numpy_data("points.npz", evaluate=(1600, 2000))
job = weft.Client().submit(
    loss, metrics={"accuracy": accuracy}, data=data, epochs=15, optimizer=weft.Adam(lr=0.01), workers=2, shards=2
)
print("metrics:", job.watch().metrics)

weights = job.values()
print("parameters:", {name: array.shape for name, array in weights.items()})
print("scores of three points:", scores.eval({"x": x[:3]}, parameters=weights))
