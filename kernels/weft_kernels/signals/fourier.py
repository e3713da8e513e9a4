"""Fourier transforms of pairs (real, imaginary) along the last but one dimension, and their transposes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from weft_graph.operators.signals import bins_of
from weft_kernels.kernel import Array


@dataclass(frozen=True, slots=True)
class Transform:
    """A transform of `length` samples. One-sided, it is of real samples: forward it gives, inverse it takes the bins
    of `weft_graph.operators.signals.bins_of`, which the others mirror."""

    length: int
    is_inverse: bool
    is_onesided: bool

    @property
    def taken(self) -> int:
        """Elements that are read: fewer are filled up with zeros, more are cut off."""
        return _bins(self.length) if self.is_inverse and self.is_onesided else self.length

    def __call__(self, xp: Any, pairs: Array) -> Array:
        """The transform of (..., elements, 1 or 2); (..., bins, 2), or (..., samples, 1) of one-sided bins."""
        data = fitted(xp, pairs, self.taken)
        if self.is_onesided and not self.is_inverse:
            return split(xp, xp.fft.rfft(data[..., 0], axis=-1))
        values = joined(xp, data)
        if not self.is_inverse:
            return split(xp, xp.fft.fft(values, axis=-1))
        if not self.is_onesided:
            return split(xp, xp.fft.ifft(values, axis=-1))
        return xp.fft.irfft(values, n=self.length, axis=-1)[..., None]  # type: ignore[no-any-return]  # xp is Any

    def transposed(self, xp: Any, gradient: Array, shape: tuple[int, ...]) -> Array:
        """The gradient of what the transform took, of that shape, from that of its result."""
        if self.is_onesided and self.is_inverse:
            pairs = split(xp, xp.fft.rfft(gradient[..., 0], axis=-1)) * self._counted(xp, gradient.dtype)
        elif self.is_inverse:
            pairs = split(xp, xp.fft.fft(joined(xp, gradient), axis=-1)) / self.length
        else:
            # Bins that were left out have no gradient; the conjugate transform of the others leads back.
            whole = joined(xp, fitted(xp, gradient, self.length))
            pairs = split(xp, xp.fft.ifft(whole, axis=-1)) * self.length
        return fitted(xp, pairs[..., : shape[-1]], shape[-2])

    def _counted(self, xp: Any, dtype: Any) -> Array:
        """How often each one-sided bin is in the whole transform, over its length."""
        counts = xp.full((self.taken, 1), 2 / self.length, dtype=dtype)
        counts[0] = 1 / self.length
        if self.length % 2 == 0:
            counts[-1] = 1 / self.length
        return counts  # type: ignore[no-any-return]  # xp is Any


def _bins(length: int) -> int:
    bins = bins_of(length)
    assert isinstance(bins, int), "the bins of a number are a number"
    return bins


def fitted(xp: Any, pairs: Array, length: int) -> Array:
    """The first `length` elements of (..., elements, parts), zeros where there are fewer."""
    have = pairs.shape[-2]
    if have >= length:
        return pairs[..., :length, :]
    result: Array = xp.zeros((*pairs.shape[:-2], length, pairs.shape[-1]), dtype=pairs.dtype)
    result[..., :have, :] = pairs
    return result


def joined(xp: Any, pairs: Array) -> Array:
    """(..., elements) of complex numbers, from (..., elements, 1 or 2)."""
    return pairs[..., 0] + 1j * pairs[..., 1] if pairs.shape[-1] == 2 else pairs[..., 0]


def split(xp: Any, values: Array) -> Array:
    """(..., elements, 2) from complex numbers."""
    return xp.stack([values.real, values.imag], axis=-1)  # type: ignore[no-any-return]  # xp is Any
