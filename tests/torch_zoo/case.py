"""What a case of the zoo is, and how its inputs are drawn."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

Example = tuple[Any, ...] | dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A module with an example of its inputs. Floats are drawn in float32 and used in `dtype`."""

    name: str
    family: str
    make: Callable[[], nn.Module]
    example: Callable[[], Example]
    refused: str = ""
    """What `weft.from_torch` says where it has to refuse the module, as a regular expression."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of `weft.from_torch`."""
    traps: tuple[str, ...] = ()
    further: bool = False
    """Whether the suite leaves it out for the time that it takes, or since `worker/test_torch_models_train.py` or
    `kernels/test_torch_models.py` has it; see `zoo.DAILY`."""
    dtype: torch.dtype = torch.float64
    """float32 for modules that compute some parts in float32, whatever their parameters are."""

    def module(self) -> nn.Module:
        """The module as its user would have it, the same at every call.

        Parameters that are all ones or all zeros are moved a little, unless the case is about equal values.
        """
        torch.manual_seed(zlib.crc32(self.name.encode()))
        module = self.make().to(self.dtype)
        with torch.no_grad():
            for value in module.parameters() if EQUAL_VALUES not in self.traps else ():
                if value.numel() > 1 and value.min() == value.max():
                    value.add_(0.1 * torch.randn(value.shape, dtype=self.dtype))
        return module

    def inputs(self) -> Example:
        """The example, the same at every call."""
        torch.manual_seed(zlib.crc32(f"{self.name}/example".encode()))
        example = self.example()
        if isinstance(example, dict):
            return {name: self._typed(value) for name, value in example.items()}
        return tuple(self._typed(value) for value in example)

    def _typed(self, value: Any) -> Any:
        return value.to(self.dtype) if isinstance(value, Tensor) and value.is_floating_point() else value


EQUAL_VALUES = "parameters of equal values"
TRAPS = (
    "detach", "no_grad", "padding_idx", "max_norm", "scale_grad_by_freq", "BatchNorm held in eval",
    "BatchNorm training", "BatchNorm frozen", "frozen part", "frozen tied weight", "tied weights", "Dropout",
    "Dropout2d", "AlphaDropout", "DropPath", "label smoothing", "scatter_reduce mean", "sparse embedding",
    "dense embedding", "EmbeddingBag sum", "EmbeddingBag mean", "EmbeddingBag max", "offsets", "per_sample_weights",
    "spectral_norm", "weight_norm", "buffer changed by forward", "training differs from eval", EQUAL_VALUES,
    "unused parameter", "data-dependent", "random samples", "integer inputs", "several inputs", "dict example",
    "scalar loss", "logits", "several outputs", "dict output", "default attention",
)  # fmt: skip
"""What has gone wrong for imported models; each is covered by at least one case."""


def ints(high: int, *shape: int) -> Callable[[], Example]:
    """One input of whole numbers below `high`."""
    return lambda: (torch.randint(0, high, shape),)


def floats(*shape: int) -> Callable[[], Example]:
    """One input, normally distributed."""
    return lambda: (torch.randn(shape),)


def images(size: int = 8, channels: int = 3, batch: int = 3) -> Callable[[], Example]:
    """One input of square images."""
    return floats(batch, channels, size, size)


def labelled(*shape: int, classes: int) -> Callable[[], Example]:
    """Floats and a class for each sample."""
    return lambda: (torch.randn(shape), torch.randint(0, classes, shape[:1]))
