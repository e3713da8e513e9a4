"""The first elements of each sample in reverse order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.attributes import as_int
from weft_graph.ir import AttributeValue
from weft_kernels.arguments import required
from weft_kernels.host import any_of
from weft_kernels.kernel import Array, KernelContext


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    data, lengths = required(inputs)
    batch, time = as_int(attributes["batch_axis"]), as_int(attributes["time_axis"])
    samples, steps = data.shape[batch], data.shape[time]
    if lengths.shape != (samples,):
        raise ValueError(f"sequence_lens has shape {lengths.shape}, and there are {samples} samples")
    if any_of(xp, (lengths < 0) | (lengths > steps)):
        raise ValueError(f"sequence_lens must be within 0 to {steps}, the elements of a sample")
    place = xp.arange(steps)[:, None]
    source = xp.where(place < lengths, lengths - 1 - place, place)
    sample = xp.arange(samples)
    chosen = (source, sample[None, :]) if time == 0 else (sample[:, None], source.T)
    return (data[chosen],)
