"""The cases of the benchmark of priorities: ResNet-50's arrays over slow links."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from link_measuring import SlowCase
from slow_link import Shaping
from store_cases import FLOAT_BYTES, Case, Shape, resnet50_shapes, vgg16_shapes

RATES = {"1gbit": (1e9, 0.3, 3), "100mbit": (1e8, 0.9, 1)}
"""Bits a second, the seconds over which a backward pass hands its gradients over, and iterations of a round."""


def slow_cases() -> tuple[SlowCase, ...]:
    found = []
    for shaping in Shaping:
        for rate, (bits_per_s, stagger_s, iterations) in RATES.items():
            for manner, seconds in (("burst", 0.0), ("stagger", stagger_s)):
                name = f"{rate}-{manner}"
                case = Case(name, resnet50_shapes(), 1, 1, iterations, warm_up=1, stagger_s=seconds)
                found.append(SlowCase(name, case, bits_per_s, shaping))
        found += [_training(name, shaping) for name in TRAINED]
    return tuple(found)


def _training(name: str, shaping: Shaping) -> SlowCase:
    shapes, extents = TRAINED[name]()
    # As long as the gradients' way: with less computing the link alone counts, and with more the processor.
    bits_per_s = RATES[TRAINING_RATE][0]
    total_s = 8 * FLOAT_BYTES * sum(math.prod(shape) for shape in shapes) / bits_per_s
    label = f"train-{name}-{TRAINING_RATE}"
    case = Case(label, shapes, 1, 1, iterations=4, warm_up=1, compute_s=compute_times(shapes, extents, total_s))
    return SlowCase(label, case, bits_per_s, shaping)


def compute_times(shapes: Sequence[Shape], extents: Sequence[int], total_s: float) -> tuple[float, ...]:
    """Shares of `total_s` by each layer's products: a weight is used once for each place of its output."""
    products = [
        math.prod(shape) * extent**2 if len(shape) > 1 else 0 for shape, extent in zip(shapes, extents, strict=True)
    ]
    return tuple(total_s * each / sum(products) for each in products)


def resnet50() -> tuple[tuple[Shape, ...], list[int]]:
    """The arrays, and the extent of the output of each one's layer, for images of 224 x 224."""
    extents = [112] * 3
    for blocks, extent in ((3, 56), (4, 28), (6, 14), (3, 7)):
        extents += [extent] * (9 * blocks + 3)
    return resnet50_shapes(), [*extents, 1, 1]


def vgg16() -> tuple[tuple[Shape, ...], list[int]]:
    """The same for VGG-16."""
    extents = []
    for count, extent in ((2, 224), (2, 112), (3, 56), (3, 28), (3, 14)):
        extents += [extent] * (2 * count)
    return vgg16_shapes(), [*extents, *[1] * 6]


TRAINED = {"resnet50": resnet50, "vgg16": vgg16}
TRAINING_RATE = "1gbit"


def quick(slow: SlowCase) -> SlowCase:
    """The same with one iteration a round."""
    return replace(slow, case=replace(slow.case, iterations=1))
