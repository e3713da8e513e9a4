"""The networks whose gradients are compared with PyTorch's, each a module whose output is its loss. Needs torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Basic(nn.Module):
    """Two 3x3 convolutions beside a shortcut."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.shortcut = _shortcut(channels, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


def _shortcut(channels: int, out: int, stride: int) -> nn.Module:
    if stride == 1 and channels == out:
        return nn.Identity()
    return nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))


class ResNet(nn.Module):
    """A stem, four stages of blocks that halve the image, an average and a classifier."""

    def __init__(self, depths: tuple[int, ...]) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU())
        self.pool = nn.MaxPool2d(3, 2, 1)
        blocks: list[nn.Module] = []
        channels = 64
        for stage, depth in enumerate(depths):
            for index in range(depth):
                width = 64 << stage
                blocks.append(Basic(channels, width, 2 if stage and index == 0 else 1))
                channels = width
        self.blocks = nn.Sequential(*blocks)
        self.classifier = nn.Linear(channels, 1000)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        features = self.blocks(self.pool(self.stem(images)))
        logits = self.classifier(F.adaptive_avg_pool2d(features, 1).flatten(1))
        return F.cross_entropy(logits, labels)


class DecoderBlock(nn.Module):
    """Causal self-attention and a feed-forward part, normalized before (GPT-2)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, 4 * width)
        self.fc2 = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).split(width, 2)
        q, k, v = (t.view(batch, tokens, self.heads, width // self.heads).transpose(1, 2) for t in (q, k, v))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(attended.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x)), approximate="tanh"))


class Decoder(nn.Module):
    """A GPT-2-like decoder whose logits are read off the token embedding (tied weights)."""

    def __init__(self, vocabulary: int = 96, tokens: int = 24, width: int = 48, heads: int = 4, depth: int = 3) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(tokens, width)
        self.blocks = nn.Sequential(*(DecoderBlock(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.token.weight

    def logits(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1]))
        return self.head(self.norm(self.blocks(x)))

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(self.logits(tokens).flatten(0, 1), targets.flatten())


class Encoder(nn.Module):
    """A BERT-like encoder: three embeddings, post-norm layers under a padding mask, a masked-token loss."""

    def __init__(self, vocabulary: int = 80, tokens: int = 20, width: int = 48, heads: int = 4, depth: int = 2) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(tokens, width)
        self.segment = nn.Embedding(2, width)
        self.norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, "gelu", batch_first=True) for _ in range(depth)
        )
        self.transform = nn.Linear(width, width)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor, segments: Tensor, mask: Tensor, targets: Tensor) -> Tensor:
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1])) + self.segment(segments)
        x = self.norm(x)
        for layer in self.layers:
            x = layer(x, src_key_padding_mask=mask)
        logits = self.head(torch.tanh(self.transform(x)))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100)


class VisionTransformer(nn.Module):
    """Patches by a strided convolution, a class token, pre-norm layers."""

    def __init__(self, size: int = 32, patch: int = 8, width: int = 48, heads: int = 4, depth: int = 2) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.first = nn.Parameter(torch.zeros(1, 1, width))
        self.position = nn.Parameter(torch.zeros(1, (size // patch) ** 2 + 1, width))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, heads, 2 * width, 0.0, "gelu", batch_first=True, norm_first=True)
            for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(x.shape[0], -1, -1), x], 1) + self.position
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.head(self.norm(x)[:, 0]), labels)


class LanguageModel(nn.Module):
    """An LSTM language model of two layers."""

    def __init__(self, vocabulary: int = 60, width: int = 32) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, 2, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        hidden, _ = self.lstm(self.token(tokens))
        return F.cross_entropy(self.head(hidden).flatten(0, 1), targets.flatten())


class UNet(nn.Module):
    """Down and up again with shortcuts across (Ronneberger et al., 2015): a transposed convolution, then bilinear."""

    def __init__(self, width: int = 12, classes: int = 4) -> None:
        super().__init__()
        self.down1 = _double(3, width)
        self.down2 = _double(width, 2 * width)
        self.bottom = _double(2 * width, 4 * width)
        self.up2 = nn.ConvTranspose2d(4 * width, 2 * width, 2, 2)
        self.join2 = _double(4 * width, 2 * width)
        self.join1 = _double(3 * width, width)
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        first = self.down1(images)
        second = self.down2(F.max_pool2d(first, 2))
        x = self.up2(self.bottom(F.max_pool2d(second, 2)))
        x = self.join2(torch.cat([x, second], 1))
        x = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
        return F.cross_entropy(self.head(self.join1(torch.cat([x, first], 1))), labels)


def _double(channels: int, width: int) -> nn.Module:
    layers: list[nn.Module] = []
    for inputs in (channels, width):
        layers += [nn.Conv2d(inputs, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    return nn.Sequential(*layers)


class DLRM(nn.Module):
    """Dense features and bags of embeddings, joined by their inner products (Naumov et al., 2019)."""

    def __init__(self, rows: tuple[int, ...] = (50, 30, 20), width: int = 16, dense: int = 13) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(count, width) for count in rows)
        self.bottom = nn.Sequential(nn.Linear(dense, 32), nn.ReLU(), nn.Linear(32, width), nn.ReLU())
        pairs = (len(rows) + 1) * len(rows) // 2
        self.top = nn.Sequential(nn.Linear(pairs + width, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, features: Tensor, ids: Tensor, clicks: Tensor) -> Tensor:
        bottom = self.bottom(features)
        bags = [table(ids[:, index]).sum(1) for index, table in enumerate(self.tables)]
        stacked = torch.stack([bottom, *bags], 1)
        products = torch.bmm(stacked, stacked.transpose(1, 2))
        rows, columns = torch.tril_indices(stacked.shape[1], stacked.shape[1], -1)
        joined = torch.cat([bottom, products[:, rows, columns]], 1)
        return F.binary_cross_entropy_with_logits(self.top(joined)[:, 0], clicks)


class DeepFM(nn.Module):
    """A factorization machine beside a deep network over the same embeddings (Guo et al., 2017)."""

    def __init__(self, features: int = 120, fields: int = 6, width: int = 8) -> None:
        super().__init__()
        self.linear = nn.Embedding(features, 1)
        self.factors = nn.Embedding(features, width)
        self.bias = nn.Parameter(torch.zeros(1))
        self.deep = nn.Sequential(
            nn.Linear(fields * width, 32),
            nn.BatchNorm1d(32),
            nn.ReLU(),
            nn.Linear(32, 16),
            nn.PReLU(),
            nn.Linear(16, 1),
        )

    def forward(self, ids: Tensor, clicks: Tensor) -> Tensor:
        factors = self.factors(ids)
        second = 0.5 * (factors.sum(1) ** 2 - (factors**2).sum(1)).sum(1)
        score = self.bias + self.linear(ids).sum((1, 2)) + second + self.deep(factors.flatten(1))[:, 0]
        return F.binary_cross_entropy(torch.sigmoid(score), clicks)


@dataclass(frozen=True)
class Network:
    """A network, its example inputs by name as (kind, shape, bound): `float`, `int` below the bound, `bit`."""

    make: Callable[[], nn.Module]
    inputs: dict[str, tuple[str, tuple[int, ...], int]]


NETWORKS = {
    "resnet18": Network(
        lambda: ResNet((2, 2, 2, 2)), {"images": ("float", (2, 3, 64, 64), 0), "labels": ("int", (2,), 1000)}
    ),
    "decoder": Network(Decoder, {"tokens": ("int", (3, 24), 96), "targets": ("int", (3, 24), 96)}),
    "encoder": Network(
        Encoder,
        {
            "tokens": ("int", (3, 20), 80),
            "segments": ("int", (3, 20), 2),
            "mask": ("mask", (3, 20), 14),
            "targets": ("int", (3, 20), 80),
        },
    ),
    "vit": Network(VisionTransformer, {"images": ("float", (3, 3, 32, 32), 0), "labels": ("int", (3,), 10)}),
    "lstm": Network(LanguageModel, {"tokens": ("int", (3, 15), 60), "targets": ("int", (3, 15), 60)}),
    "unet": Network(UNet, {"images": ("float", (2, 3, 24, 24), 0), "labels": ("int", (2, 24, 24), 4)}),
    "dlrm": Network(
        DLRM, {"features": ("float", (5, 13), 0), "ids": ("int", (5, 3, 4), 20), "clicks": ("bit", (5,), 2)}
    ),
    "deepfm": Network(DeepFM, {"ids": ("int", (7, 6), 120), "clicks": ("bit", (7,), 2)}),
}
"""By name; the first dimension of every input is the batch."""
