"""ResNets (He, Zhang, Ren and Sun, "Deep residual learning", 2015) as graphs, for tests of memory and whole steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import weft
from weft import nn, ops
from weft.expression import Expression
from weft_graph.ir import Graph


@dataclass(frozen=True, slots=True)
class ResNet:
    """The net's sizes: blocks of each stage, channels of the first, pixels of an image's side, classes."""

    blocks: Sequence[int] = (3, 4, 6, 3)
    width: int = 64
    pixels: int = 224
    classes: int = 1000


RESNET_50 = ResNet()
SMALL = ResNet(blocks=(1, 2, 1), width=4, pixels=32, classes=5)


def resnet_graph(net: ResNet) -> Graph:
    """The training graph, whose output `loss` is the mean cross-entropy; image and label are its inputs.

    Bottleneck blocks with the stride on the 3x3 convolution, as everybody trains them today.
    """
    image = weft.input("image", ("batch", 3, net.pixels, net.pixels))
    label = weft.input("label", ("batch",), "int64")
    x = ops.relu(_conv_norm(image, 3, net.width, 7, 2, "stem"))
    x = nn.MaxPool2d(3, stride=2, padding=1)(x)
    channels = net.width
    for stage, count in enumerate(net.blocks):
        inner = net.width << stage
        for block in range(count):
            stride = 2 if stage and not block else 1
            x = _bottleneck(x, channels, inner, stride, f"stage{stage}.block{block}")
            channels = 4 * inner
    scores = nn.Linear(channels, net.classes, name="head")(nn.Flatten()(nn.GlobalAvgPool2d()(x)))
    return nn.cross_entropy(scores, label).graph()


def _bottleneck(x: Expression, channels: int, inner: int, stride: int, name: str) -> Expression:
    shortcut = x
    if stride > 1 or channels != 4 * inner:
        shortcut = _conv_norm(x, channels, 4 * inner, 1, stride, f"{name}.shortcut")
    y = ops.relu(_conv_norm(x, channels, inner, 1, 1, f"{name}.reduce"))
    y = ops.relu(_conv_norm(y, inner, inner, 3, stride, f"{name}.middle"))
    return ops.relu(_conv_norm(y, inner, 4 * inner, 1, 1, f"{name}.expand") + shortcut)


def _conv_norm(x: Expression, inputs: int, outputs: int, kernel: int, stride: int, name: str) -> Expression:
    padding = (kernel - 1) // 2
    convolved = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=padding, bias=False, name=f"{name}.conv")(x)
    return nn.BatchNorm(outputs, name=f"{name}.norm")(convolved)
