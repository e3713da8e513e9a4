"""BatchNormalization before it had a training mode, GroupNormalization by groups, Selu's rounded numbers."""

from __future__ import annotations

from collections.abc import Sequence

from weft_graph.ir import Node
from weft_graph.onnx_form.versions.form import Older, OldForm


def _batch_9(old: Older) -> Sequence[Node]:
    """Mean and variance of the first two dimensions alone exist no more."""
    if not old.attribute("spatial", 1):
        raise old.refusal("spatial 0, a mean for each element of a sample, is in no newer opset")
    return [old.becomes(drop=("spatial", "is_test"))]


def _batch_14(old: Older) -> Sequence[Node]:
    """It trains where it gives more than its result; the statistics of the batch alone are given no more."""
    outputs = old.node.outputs
    if any(outputs[3:]):
        raise old.refusal("outputs 'saved_mean' and 'saved_var' are in no newer opset")
    training = int(any(outputs[1:]))
    return [old.becomes(outputs=outputs[:3] if training else outputs[:1], training_mode=training)]


def _group_21(old: Older) -> Sequence[Node]:
    """Scale and bias are by group, and become numbers for each channel."""
    type_ = old.type_of(old.input(0))
    groups = int(old.number("num_groups", 0))
    channels = None if type_ is None or type_.rank < 2 else type_.shape[1]
    if not isinstance(channels, int) or groups < 1 or channels % groups:
        raise old.refusal("the count of its channels is not known, or no multiple of its groups")
    one, shape = old.integers([1], "axes"), old.integers([groups, channels // groups], "shape")
    flat = old.integers([channels], "channels")
    widened = (
        old.emit("Reshape", old.emit("Expand", old.emit("Unsqueeze", old.input(index), one), shape), flat)
        for index in (1, 2)
    )
    return [old.becomes(inputs=(old.input(0), *widened))]


def _selu_6(old: Older) -> Sequence[Node]:
    return [old.becomes(alpha=old.number("alpha", 1.6732), gamma=old.number("gamma", 1.0507))]


FORMS = (
    OldForm("BatchNormalization", 9, _batch_9),
    OldForm("BatchNormalization", 14, _batch_14),
    OldForm("GroupNormalization", 21, _group_21),
    OldForm("Selu", 6, _selu_6),
)
