"""Dropout of every kind, normalization in every mode, parts that are frozen, and weights that are tied or made."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from torch_zoo.case import EQUAL_VALUES, Case, floats, images, ints


class DropPath(nn.Module):
    """Drops a sample's whole path, as timm writes it (Huang et al., 2016)."""

    def __init__(self, drop_prob: float = 0.0) -> None:
        super().__init__()
        self.drop_prob = drop_prob

    def forward(self, x: Tensor) -> Tensor:
        if self.drop_prob == 0.0 or not self.training:
            return x
        keep = 1 - self.drop_prob
        shape = (x.shape[0],) + (1,) * (x.ndim - 1)
        mask = x.new_empty(shape).bernoulli_(keep)
        mask.div_(keep)
        return x * mask


class StochasticDepth(nn.Module):
    """Two residual blocks whose paths are dropped, a convolution and a perceptron."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)
        self.drop1 = DropPath(0.25)
        self.mlp = nn.Linear(48, 48)
        self.drop2 = DropPath(0.5)
        self.head = nn.Linear(48, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop1(F.gelu(self.conv(x)))
        x = x.flatten(1)
        return self.head(x + self.drop2(F.silu(self.mlp(x))))


class Dropping(nn.Module):
    """A perceptron on features of a convolution, each followed by a kind of dropout."""

    def __init__(self, of_maps: nn.Module, of_features: nn.Module) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.of_maps = of_maps
        self.hidden = nn.Linear(4 * 36, 8)
        self.of_features = of_features
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.of_maps(F.relu(self.conv(x))).flatten(1)
        return self.head(self.of_features(F.selu(self.hidden(x))))


def convolutions(norm: Callable[[int], nn.Module], channels: int = 4) -> nn.Sequential:
    """Two convolutions, each with a normalization, and a classifier."""
    return nn.Sequential(
        nn.Conv2d(3, channels, 3, bias=False), norm(channels), nn.ReLU(),
        nn.Conv2d(channels, channels, 3), norm(channels), nn.SiLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 5),
    )  # fmt: skip


def _run_in(norm: int) -> nn.BatchNorm2d:
    """A BatchNorm that has seen data: its running statistics are not 0 and 1."""
    made = nn.BatchNorm2d(norm)
    made.running_mean.normal_()
    made.running_var.uniform_(0.5, 2.0)
    return made


def first_norm_held() -> nn.Module:
    """In training, but for one BatchNorm."""
    module = convolutions(_run_in).train()
    module[1].eval()
    return module


def all_norms_frozen() -> nn.Module:
    """What fine-tuning does to a backbone: every BatchNorm in `eval()`, its scale and shift without gradients."""
    module = convolutions(_run_in).train()
    for each in module.modules():
        if isinstance(each, nn.BatchNorm2d):
            each.eval().requires_grad_(False)
    return module


def norms_held_with_dropout() -> nn.Module:
    """BatchNorm held in `eval()`, whose scales train, beside Dropout that drops."""
    module = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.4), nn.Linear(8, 3)).train()
    module[1].running_mean.normal_()
    module[1].eval()
    return module


def frozen_backbone() -> nn.Module:
    """Fine-tuning: the convolutions are as they are, the classifier trains."""
    module = convolutions(nn.BatchNorm2d)
    for each in module[:6].parameters():
        each.requires_grad_(False)
    return module


class Norms(nn.Module):
    """The same features under every normalization of rows or of maps, side by side."""

    def __init__(self, features: nn.Module, *norms: nn.Module) -> None:
        super().__init__()
        self.features, self.norms = features, nn.ModuleList(norms)

    def forward(self, x: Tensor) -> Tensor:
        x = self.features(x)
        return torch.cat([torch.tanh(norm(x)) for norm in self.norms], 1)


def norms_of_rows() -> nn.Module:
    """LayerNorm and RMSNorm with and without scales, BatchNorm without a scale or without running statistics."""
    return Norms(
        nn.Linear(6, 8), nn.LayerNorm(8), nn.LayerNorm(8, elementwise_affine=False), nn.LayerNorm(8, bias=False),
        nn.RMSNorm(8), nn.BatchNorm1d(8, affine=False), nn.BatchNorm1d(8, track_running_stats=False),
    )  # fmt: skip


def norms_of_maps() -> nn.Module:
    """GroupNorm, InstanceNorm with and without a scale, LocalResponseNorm."""
    return Norms(
        nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.GroupNorm(4, 4, affine=False), nn.InstanceNorm2d(4),
        nn.InstanceNorm2d(4, affine=True), nn.LocalResponseNorm(3),
    )  # fmt: skip


class OfFrozenTable(nn.Module):
    """A language model whose embedding is frozen, and so is the head that is tied to it."""

    def __init__(self, frozen: bool = True) -> None:
        super().__init__()
        self.table = nn.Embedding(12, 6)
        self.mix = nn.Linear(6, 6)
        self.head = nn.Linear(6, 12, bias=False)
        self.head.weight = self.table.weight
        self.table.weight.requires_grad_(not frozen)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(torch.tanh(self.mix(self.table(tokens))))


class TiedAutoencoder(nn.Module):
    """The decoder's weight is the encoder's, transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(10, 4)
        self.shift = nn.Parameter(torch.zeros(10))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(torch.tanh(self.encoder(x)), self.encoder.weight.t(), self.shift)


class SharedBlock(nn.Module):
    """One block that is applied three times, and known by two names (ALBERT, Lan et al., 2019)."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 6), nn.GELU())
        self.again = self.block
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.block(x)
        x = x + self.again(x)
        return self.head(x + self.block(x))


class WithUnused(nn.Module):
    """A head that nothing asks for, and a parameter that only another branch reads."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(6, 8)
        self.head = nn.Linear(8, 3)
        self.pretraining_head = nn.Linear(8, 20)
        self.mask_token = nn.Parameter(torch.randn(6))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.body(x)))


class EqualTwins(nn.Module):
    """Parameters of equal values and shapes that are distinct: they get gradients of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Linear(6, 6)
        self.right = copy.deepcopy(self.left)
        self.norm1, self.norm2 = nn.LayerNorm(6), nn.LayerNorm(6)
        self.scale1, self.scale2 = nn.Parameter(torch.ones(6)), nn.Parameter(torch.ones(6))
        self.shift1, self.shift2 = nn.Parameter(torch.zeros(6)), nn.Parameter(torch.zeros(6))
        nn.init.zeros_(self.left.bias)
        nn.init.zeros_(self.right.bias)

    def forward(self, x: Tensor) -> Tensor:
        left = self.norm1(torch.tanh(self.left(x))) * self.scale1 + self.shift1
        return left - torch.sigmoid(self.norm2(self.right(left)) * self.scale2 + self.shift2)


class EqualConvolutions(nn.Module):
    """Fresh from its initializers: BatchNorms of ones and zeros, convolutions without biases or with zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(3, 3, 3, padding=1) for _ in range(3))
        self.norms = nn.ModuleList(nn.GroupNorm(3, 3) for _ in range(3))
        for each in self.convs:
            nn.init.zeros_(each.bias)

    def forward(self, x: Tensor) -> Tensor:
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x + torch.tanh(norm(conv(x)))
        return x.mean((2, 3))


class NoGradFeatures(nn.Module):
    """Features that are computed without a gradient, by parameters that require one."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Linear(6, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            features = torch.relu(self.backbone(x))
        return self.head(features)


class NoGradScale(nn.Module):
    """A parameter that trains on one way and is read without a gradient on another."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(6, 6)
        self.scale = nn.Parameter(torch.rand(6) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            norm = self.scale.norm() + x.norm(dim=1, keepdim=True)
        return self.body(x * self.scale) / norm


class NoisyInTraining(nn.Module):
    """Noise on the input in training alone."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            x = x + 0.1 * torch.randn_like(x)
        return self.body(x)


class ScaledInTraining(nn.Module):
    """A layer that only training passes through, as auxiliary heads are; without randomness."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.extra = nn.Linear(6, 4), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) + 0.3 * self.extra(x) if self.training else self.body(x)


def spectral(*, held: bool) -> nn.Module:
    """A discriminator with spectral normalization; `held`: its power iterations have been stopped."""
    module = nn.Sequential(
        parametrizations.spectral_norm(nn.Conv2d(3, 4, 3)), nn.LeakyReLU(0.2), nn.Flatten(),
        parametrizations.spectral_norm(nn.Linear(4 * 36, 1)),
    ).train()  # fmt: skip
    if held:
        for each in (module[0], module[3]):
            each.parametrizations.eval()
    return module


def weight_normed() -> nn.Module:
    """Weight normalization by parametrizations."""
    return nn.Sequential(
        parametrizations.weight_norm(nn.Conv1d(2, 4, 3)), nn.ELU(),
        parametrizations.weight_norm(nn.Conv1d(4, 2, 3), dim=1), nn.Flatten(), nn.Linear(8, 3),
    )  # fmt: skip


def weight_normed_by_hooks() -> nn.Module:
    """Weight normalization as older code has it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        first, second = (torch.nn.utils.weight_norm(nn.Linear(*sizes)) for sizes in ((6, 8), (8, 3)))
    return nn.Sequential(first, nn.Tanh(), second)


def orthogonal() -> nn.Module:
    """A recurrent-style square weight that is kept orthogonal, by the Cayley map."""
    layer = parametrizations.orthogonal(nn.Linear(4, 4), orthogonal_map="cayley", use_trivialization=False)
    return nn.Sequential(nn.Linear(6, 4), layer, nn.Tanh(), nn.Linear(4, 2))


def _dropout(*classes: type[nn.Module], rates: tuple[float, float] = (0.4, 0.3)) -> Callable[[], nn.Module]:
    return lambda: Dropping(classes[0](rates[0]), classes[1](rates[1]))


_IMAGES = images()
_ROWS = floats(4, 6)

CASES = (
    Case(
        "no_grad features",
        "fine-tuning",
        NoGradFeatures,
        _ROWS,
        traps=("no_grad", "logits"),
    ),
    Case("no_grad scale", "fine-tuning", NoGradScale, _ROWS, traps=("no_grad",)),
    Case(
        "BatchNorm training",
        "conv net",
        lambda: convolutions(nn.BatchNorm2d),
        _IMAGES,
        traps=("BatchNorm training",),
        further=True,
    ),
    Case(
        "one BatchNorm held",
        "conv net",
        first_norm_held,
        _IMAGES,
        traps=("BatchNorm held in eval", "BatchNorm training"),
    ),
    Case(
        "BatchNorm held beside Dropout",
        "perceptron",
        norms_held_with_dropout,
        _ROWS,
        traps=("BatchNorm held in eval", "Dropout"),
        further=True,
    ),
    Case(
        "all BatchNorm frozen",
        "conv net",
        all_norms_frozen,
        _IMAGES,
        traps=("BatchNorm frozen", "BatchNorm held in eval"),
    ),
    Case("frozen backbone", "fine-tuning", frozen_backbone, _IMAGES, traps=("frozen part", "BatchNorm training")),
    Case(
        "frozen tied table",
        "language model",
        OfFrozenTable,
        ints(12, 3, 5),
        traps=("frozen part", "frozen tied weight", "tied weights", "integer inputs"),
    ),
    Case(
        "tied table",
        "language model",
        lambda: OfFrozenTable(False),
        ints(12, 3, 5),
        traps=("tied weights", "integer inputs"),
    ),
    Case("tied autoencoder", "autoencoder", TiedAutoencoder, floats(4, 10), traps=("tied weights",)),
    Case("shared block", "perceptron", SharedBlock, _ROWS, traps=("tied weights",), further=True),
    Case("unused parameters", "fine-tuning", WithUnused, _ROWS, traps=("unused parameter",)),
    Case("equal twins", "perceptron", EqualTwins, _ROWS, traps=(EQUAL_VALUES,)),
    Case("equal convolutions", "conv net", EqualConvolutions, _IMAGES, traps=(EQUAL_VALUES,)),
    Case("Dropout", "conv net", _dropout(nn.Dropout, nn.Dropout), _IMAGES, traps=("Dropout",)),
    Case("Dropout2d", "conv net", _dropout(nn.Dropout2d, nn.Dropout), _IMAGES, traps=("Dropout2d", "Dropout")),
    Case(
        "AlphaDropout", "self-normalizing net", _dropout(nn.Identity, nn.AlphaDropout), _IMAGES, traps=("AlphaDropout",)
    ),
    Case("DropPath", "conv net", StochasticDepth, images(4), traps=("DropPath",)),
    Case(
        "noise in training",
        "perceptron",
        NoisyInTraining,
        _ROWS,
        r"(?i)eval",
        traps=("training differs from eval", "random samples"),
    ),
    Case(
        "a layer in training alone",
        "perceptron",
        ScaledInTraining,
        _ROWS,
        r"(?i)eval",
        traps=("training differs from eval",),
    ),
    Case(
        "spectral norm",
        "GAN",
        lambda: spectral(held=False),
        _IMAGES,
        r"_[uv]\b",
        traps=("spectral_norm", "buffer changed by forward"),
    ),
    Case("spectral norm held", "GAN", lambda: spectral(held=True), _IMAGES, traps=("spectral_norm",)),
    Case("weight norm", "temporal conv net", weight_normed, floats(3, 2, 8), traps=("weight_norm",)),
    Case("weight norm by hooks", "perceptron", weight_normed_by_hooks, _ROWS, traps=("weight_norm",), further=True),
    Case("orthogonal weight", "perceptron", orthogonal, _ROWS, r"linalg_solve", further=True),
    Case("norms of rows", "normalization", norms_of_rows, _ROWS, traps=("BatchNorm training",)),
    Case("norms of maps", "normalization", norms_of_maps, _IMAGES, further=True),
    Case(
        "norms over time",
        "normalization",
        lambda: Norms(nn.Conv1d(3, 4, 3), nn.InstanceNorm1d(4, affine=True), nn.BatchNorm1d(4)),
        floats(3, 3, 6),
        further=True,
    ),
)
