"""The peer of `training.py`: one process of PyTorch, told by a JSON argument what to train and for how long."""

import json
import os
import sys
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import nn

WARM_UP = 3
BLOCK = 50
"""Steps between two looks at the clock, at most; each block ends with the loss as a number."""
BLOCK_S = 0.5
"""A block of slow steps has fewer, to take so long."""


class Block(nn.Module):
    """A block of ResNet-18: two convolutions of 3x3 beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = conv_norm(inputs, outputs, 3, stride)
        self.second = conv_norm(outputs, outputs, 3, 1)
        self.shortcut = nn.Identity() if inputs == outputs else conv_norm(inputs, outputs, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of both ways, rectified."""
        return torch.relu(self.second(torch.relu(self.first(x))) + self.shortcut(x))


def conv_norm(inputs: int, outputs: int, kernel: int, stride: int) -> nn.Module:
    """A convolution without bias, then batch normalization."""
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, (kernel - 1) // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs))


class Layer(nn.Module):
    """A layer of the decoder, as PyTorch users write one: one product for q, k and v, and the fused attention."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attention, then the two products, each added to what it reads."""
        batch, tokens, width = x.shape
        parts = self.qkv(self.norm1(x)).view(batch, tokens, 3, width // 64, 64).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind(0)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.fed(self.norm2(x))


class Decoder(nn.Module):
    """Tokens (batch, tokens) give the logits of those that follow, classes second."""

    def __init__(self, sizes: dict[str, int]) -> None:
        super().__init__()
        width = sizes["width"]
        self.tokens = nn.Embedding(256, width)
        self.positions = nn.Parameter(0.02 * torch.randn(sizes["tokens"], width))
        self.layers = nn.Sequential(*(Layer(width) for _ in range(sizes["layers"])), nn.LayerNorm(width))
        self.head = nn.Linear(width, 256)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """The logits (batch, 256, tokens)."""
        return self.head(self.layers(self.tokens(ids) + self.positions)).transpose(1, 2)


def resnet(sizes: dict[str, int]) -> nn.Module:
    """ResNet-18 with its stem of 7x7."""
    width = sizes["width"]
    layers = [conv_norm(3, width, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    for stage in range(4):
        before = width << max(stage - 1, 0)
        layers += [Block(before, width << stage, 2 if stage else 1), Block(width << stage, width << stage, 1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width << 3, 10))


MODELS = {
    "mlp": lambda _sizes: nn.Sequential(
        nn.Flatten(), nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 10)
    ),
    "lenet": lambda _sizes: nn.Sequential(
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
    "resnet18-32px": resnet,
    "decoder-4x256": Decoder,
    "embedding-bag": lambda sizes: nn.Sequential(
        nn.EmbeddingBag(sizes["rows"], 16, mode="mean", sparse=True), nn.Linear(16, 10)
    ),
}


def main() -> None:
    """Trains and tells the samples per second of the median block."""
    order = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = MODELS[order["model"]](order["sizes"])
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
    # Processes that exchange gradients must agree on how many blocks of how many steps there are.
    one = min(_block(step, 1) for _ in range(WARM_UP))
    plan = torch.tensor([max(1.0, min(BLOCK, BLOCK_S / one)), max(3.0, order["seconds"] / min(BLOCK * one, BLOCK_S))])
    if world > 1:
        torch.distributed.broadcast(plan, 0)
    size, count = map(int, plan)
    taken = sorted(_block(step, size) for _ in range(count))
    sys.stdout.write(json.dumps({"samples_per_second": size * batch / taken[len(taken) // 2]}))
    if world > 1:
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


def _block(step: Callable[[int], torch.Tensor], size: int) -> float:
    begun = time.perf_counter()
    for number in range(size):
        loss = step(number)
    loss.item()
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
