"""Networks of images: convolutions in their usual arrangements, and patches that are mixed."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torch_zoo.case import EQUAL_VALUES, Case, images, labelled


class LeNet(nn.Module):
    """LeNet-5 (LeCun et al., 1998), smaller."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 3, 3, padding=1), nn.Conv2d(3, 4, 3)
        self.fc1, self.fc2 = nn.Linear(4 * 4, 8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(torch.tanh(self.conv1(x)), 2)
        x = torch.tanh(self.conv2(x)).flatten(1)
        return self.fc2(torch.tanh(self.fc1(x)))


class Basic(nn.Module):
    """Two 3x3 convolutions beside a shortcut (He et al., 2015)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = _shortcut(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


class Bottleneck(nn.Module):
    """1x1, grouped 3x3, 1x1 convolutions beside a shortcut, whose last scale starts at zero."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        width = outputs // 2
        self.convs = nn.Sequential(
            nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, 1, groups=2, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs),
        )  # fmt: skip
        nn.init.zeros_(self.convs[-1].weight)
        self.shortcut = _shortcut(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.convs(x) + self.shortcut(x))


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Module:
    if inputs == outputs and stride == 1:
        return nn.Identity()
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))


class ResNet(nn.Module):
    """A stem, two blocks, an average, a classifier, and perhaps its loss."""

    def __init__(self, block: type[nn.Module]) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 3, 1, 1, bias=False), nn.BatchNorm2d(4), nn.ReLU())
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.blocks = nn.Sequential(block(4, 4, 1), block(4, 8, 2))
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor, label: Tensor) -> Tensor:
        x = self.blocks(self.pool(self.stem(x)))
        return F.cross_entropy(self.head(F.adaptive_avg_pool2d(x, 1).flatten(1)), label)


class InvertedResidual(nn.Module):
    """Expand, filter each channel, squeeze and excite, project (MobileNetV3, Howard et al., 2019)."""

    def __init__(self, channels: int = 4, wide: int = 8) -> None:
        super().__init__()
        self.expand = nn.Sequential(nn.Conv2d(channels, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.Hardswish())
        self.depth = nn.Sequential(
            nn.Conv2d(wide, wide, 3, 1, 1, groups=wide, bias=False), nn.BatchNorm2d(wide), nn.ReLU6()
        )
        self.squeeze = SqueezeExcite(wide)
        self.project = nn.Sequential(nn.Conv2d(wide, channels, 1, bias=False), nn.BatchNorm2d(channels))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.project(self.squeeze(self.depth(self.expand(x))))


class SqueezeExcite(nn.Module):
    """Channels are weighted by what they hold on average (Hu et al., 2017)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(channels, 2, 1), nn.Conv2d(2, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.up(torch.relu(self.down(x.mean((2, 3), keepdim=True)))))


class ConvNeXtBlock(nn.Module):
    """A wide depthwise convolution, LayerNorm over channels last, a perceptron, a small scale (Liu et al., 2022)."""

    def __init__(self, channels: int = 4) -> None:
        super().__init__()
        self.depth = nn.Conv2d(channels, channels, 5, padding=2, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.wide, self.back = nn.Linear(channels, 8), nn.Linear(8, channels)
        self.scale = nn.Parameter(torch.full((channels,), 1e-2))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depth(x).permute(0, 2, 3, 1))
        return x + (self.scale * self.back(F.gelu(self.wide(y)))).permute(0, 3, 1, 2)


class UNet(nn.Module):
    """Down and up again with shortcuts across (Ronneberger et al., 2015)."""

    def __init__(self, upsample: str) -> None:
        super().__init__()
        self.down, self.bottom = _double(3, 4), _double(4, 6)
        self.up = (
            nn.ConvTranspose2d(6, 6, 2, 2) if upsample == "transposed" else nn.Upsample(scale_factor=2, mode=upsample)
        )
        self.join, self.head = _double(10, 4), nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = self.down(x)
        x = self.up(self.bottom(F.max_pool2d(first, 2)))
        return self.head(self.join(torch.cat([x, first], 1)))


def _double(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU())


class DenseNet(nn.Module):
    """Each layer reads all that came before it (Huang et al., 2016)."""

    def __init__(self) -> None:
        super().__init__()
        widths = (3, 5, 7)
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for width in widths)
        self.convs = nn.ModuleList(nn.Conv2d(width, 2, 3, padding=1, bias=False) for width in widths)
        self.transition, self.head = nn.Conv2d(9, 4, 1), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        for norm, conv in zip(self.norms, self.convs, strict=True):
            x = torch.cat([x, conv(torch.relu(norm(x)))], 1)
        return self.head(F.avg_pool2d(self.transition(x), 2).mean((2, 3)))


class MixerBlock(nn.Module):
    """Perceptrons across patches and across channels in turn (Tolstikhin et al., 2021)."""

    def __init__(self, patches: int, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.tokens = nn.Sequential(nn.Linear(patches, 6), nn.GELU(), nn.Linear(6, patches))
        self.channels = nn.Sequential(nn.Linear(width, 8), nn.GELU(), nn.Linear(8, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norm2(x))


class OfPatches(nn.Module):
    """Patches by a strided convolution, blocks, an average."""

    def __init__(self, *blocks: nn.Module, width: int = 6, class_token: bool = False) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.first = nn.Parameter(torch.zeros(1, 1, width)) if class_token else None
        self.places = nn.Parameter(0.5 * torch.randn(1, 4 + class_token, width))
        self.blocks, self.head = nn.Sequential(*blocks), nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        if self.first is not None:
            x = torch.cat([self.first.expand(x.shape[0], -1, -1), x], 1)
        x = self.blocks(x + self.places)
        return self.head(x[:, 0] if self.first is not None else x.mean(1))


class Autoencoder(nn.Module):
    """Strided convolutions and their transposes; a loss beside the reconstruction."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.ReLU(), nn.Conv2d(4, 4, 3, 2, 1))
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(4, 4, 3, 2, 1, output_padding=1), nn.ReLU(), nn.ConvTranspose2d(4, 3, 4, 2, 1)
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        made = torch.sigmoid(self.decoder(self.encoder(x)))
        return F.mse_loss(made, torch.sigmoid(x)), made


class SpatialTransformer(nn.Module):
    """An image is warped by what it says itself (Jaderberg et al., 2015)."""

    def __init__(self) -> None:
        super().__init__()
        self.locate = nn.Linear(3 * 36, 6)
        nn.init.normal_(self.locate.weight, std=0.02)
        self.locate.bias.data = torch.tensor([0.9, 0.1, 0.05, -0.1, 0.8, 0.1])
        self.conv = nn.Conv2d(3, 2, 3)

    def forward(self, x: Tensor) -> Tensor:
        angles = self.locate(x.flatten(1)).unflatten(1, (2, 3))
        grid = F.affine_grid(angles, list(x.shape), align_corners=False)
        return self.conv(F.grid_sample(x, grid, align_corners=False)).mean((2, 3))


class SuperResolution(nn.Module):
    """Channels become pixels (Shi et al., 2016), over padded borders."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.ReflectionPad2d(1), nn.Conv2d(3, 12, 3), nn.PixelShuffle(2))

    def forward(self, x: Tensor) -> Tensor:
        return F.interpolate(x, scale_factor=2, mode="nearest") + self.body(x)


class Detector(nn.Module):
    """Boxes and classes at every place of a map, as two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.GroupNorm(2, 4), nn.SiLU())
        self.boxes, self.classes = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 3, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        features = self.body(x)
        boxes = self.boxes(features).flatten(2).transpose(1, 2)
        corners = torch.cat([boxes[..., :2] - boxes[..., 2:].exp() / 2, boxes[..., :2] + boxes[..., 2:].exp() / 2], -1)
        return {"boxes": corners, "classes": self.classes(features).flatten(2).transpose(1, 2).sigmoid()}


def _vgg() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(True), nn.MaxPool2d(2),
        nn.Conv2d(4, 6, 3, padding=1), nn.ReLU(True), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(24, 8), nn.ReLU(True), nn.Dropout(0.5), nn.Linear(8, 5),
    )  # fmt: skip


def _classifier(block: nn.Module, channels: int = 4) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, channels, 3, 2, 1), block, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 5)
    )


def _vit() -> nn.Module:
    layer = nn.TransformerEncoderLayer(6, 2, 8, 0.0, "gelu", batch_first=True, norm_first=True)
    return OfPatches(layer, nn.LayerNorm(6), class_token=True)


_IMAGES = images()
_LABELLED = labelled(3, 3, 8, 8, classes=5)

CASES = (
    Case("LeNet", "conv net", LeNet, images(8, 1), traps=("logits",)),
    Case("VGG", "conv net", _vgg, _IMAGES, traps=("Dropout",), further=True),
    Case(
        "ResNet, basic",
        "residual net",
        lambda: ResNet(Basic),
        _LABELLED,
        traps=("BatchNorm training", "scalar loss"),
        further=True,
    ),
    Case(
        "ResNet, bottleneck",
        "residual net",
        lambda: ResNet(Bottleneck),
        _LABELLED,
        traps=("BatchNorm training", EQUAL_VALUES),
        further=True,
    ),
    Case("MobileNet", "mobile net", lambda: _classifier(InvertedResidual()), _IMAGES, traps=("BatchNorm training",)),
    Case("ConvNeXt", "ConvNeXt", lambda: _classifier(ConvNeXtBlock()), _IMAGES, further=True),
    Case("U-Net", "segmentation", lambda: UNet("transposed"), images(4), traps=("BatchNorm training",), further=True),
    Case("U-Net, bilinear", "segmentation", lambda: UNet("bilinear"), images(4), further=True),
    Case("DenseNet", "dense net", DenseNet, images(4), further=True),
    Case("MLP-Mixer", "MLP-Mixer", lambda: OfPatches(MixerBlock(4, 6)), _IMAGES, further=True),
    Case("ViT of layers", "vision transformer", _vit, _IMAGES, further=True),
    Case("convolutional autoencoder", "autoencoder", Autoencoder, _IMAGES, traps=("several outputs",)),
    Case("spatial transformer", "conv net", SpatialTransformer, images(6), further=True),
    Case("super-resolution", "super-resolution", SuperResolution, images(4), further=True),
    Case("detector", "detector", Detector, images(6), traps=("dict output", "several outputs"), further=True),
)
