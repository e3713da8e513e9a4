"""The peer of `training.py`: one process of PyTorch, told by a JSON argument what to train and for how long."""

import json
import os
import sys
import time

import numpy as np
import torch
from torch import nn

WARM_UP = 20
BLOCK = 50
"""Steps between two looks at the clock; each block ends with the loss as a number."""

MODELS = {
    "mlp": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 10)
    ),
    "lenet": lambda: nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(400, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, 10),
    ),
}


def main() -> None:
    """Trains and tells the samples per second of the median block."""
    order = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = MODELS[order["model"]]()
    world, rank, batch = order["world"], order["rank"], order["batch"]
    if world > 1:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        address = f"tcp://127.0.0.1:{order['port']}"
        torch.distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=world)
        net = nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=order["rate"])
    data = np.load(order["data"])
    x, y = torch.from_numpy(data["x"][rank::world].copy()), torch.from_numpy(data["y"][rank::world].copy())
    batches = len(x) // batch
    feeds = [(x[i * batch : (i + 1) * batch], y[i * batch : (i + 1) * batch]) for i in range(batches)]
    loss_of = nn.CrossEntropyLoss()

    def step(number: int) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        images, labels = feeds[number % batches]
        loss = loss_of(net(images), labels)
        loss.backward()
        optimizer.step()
        return loss

    for number in range(WARM_UP):
        step(number)
    # Processes that exchange gradients must agree on how many blocks there are.
    taken = [_block(step) for _ in range(2)]
    count = torch.tensor([max(3.0, order["seconds"] / min(taken))])
    if world > 1:
        torch.distributed.broadcast(count, 0)
    taken = sorted(_block(step) for _ in range(int(count)))
    sys.stdout.write(json.dumps({"samples_per_second": BLOCK * batch / taken[len(taken) // 2]}))
    if world > 1:
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


def _block(step) -> float:  # type: ignore[no-untyped-def]
    begun = time.perf_counter()
    for number in range(BLOCK):
        loss = step(number)
    loss.item()
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
