"""Which keys a worker updates itself, and the store as its programs see it. Pure.

For such a key `K` the store has two: `K`, which has the first value and to which nobody contributes, and `K/grad`,
whose value is the merged gradient of the last step. The programs fetch and send `K`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from weft.api.store import GRADIENT_SUFFIX, gradient_key
from weft_graph.program import Update
from weft_kvstore.description.records import KeyDescription, Mode, StoreDescription
from weft_worker.errors import TaskError


@dataclass(frozen=True, slots=True)
class LocalKeys:
    """`keys` are updated by the workers, by name; `seen` is the description without their gradients' keys, in which
    the slots that contribute to a gradient contribute to its key."""

    keys: Mapping[str, KeyDescription]
    seen: StoreDescription


def local_keys_of(description: StoreDescription) -> LocalKeys:
    """The description's. Raises TaskError, naming the key, where a gradient and its key do not belong together."""
    gradients = {key.key: key for key in description.keys if key.update is Update.GRADIENT}
    local: dict[str, KeyDescription] = {}
    for gradient in gradients.values():
        key = next((each for each in description.keys if gradient_key(each.key) == gradient.key), None)
        _check(key, gradient, description)
        assert key is not None
        local[key.key] = msgspec.structs.replace(key, slots=gradient.slots, priority=gradient.priority)
    seen = tuple(local.get(key.key, key) for key in description.keys if key.key not in gradients)
    return LocalKeys(local, msgspec.structs.replace(description, keys=seen))


def _check(key: KeyDescription | None, gradient: KeyDescription, description: StoreDescription) -> None:
    where = f"the store's description: key {gradient.key!r} holds a merged gradient"
    if key is None:
        raise TaskError(f"{where}, and there is no key of the same name without {GRADIENT_SUFFIX!r}")
    if description.mode is not Mode.SYNC:
        raise TaskError(f"{where}, and workers update only in mode 'sync', not {description.mode.value!r}")
    if key.slots:
        raise TaskError(f"{where}, and slots {list(key.slots)} contribute to {key.key!r} as well")
    if key.rows or gradient.rows or key.update is not Update.RULE:
        raise TaskError(f"{where}, and {key.key!r} is no dense key that a rule updates")
    if (key.dtype, key.shape) != (gradient.dtype, gradient.shape):
        shown = [f"{each.dtype}{list(each.shape)}" for each in (gradient, key)]
        raise TaskError(f"{where}, of type {shown[0]}; {key.key!r} is {shown[1]}")
