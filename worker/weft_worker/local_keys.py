"""Keys that a worker updates itself: which they are, their values and the optimizer's state on the device.

For such a key `K` the store has two: `K`, which has the first value and to which nobody contributes, and `K/grad`,
whose value is the merged gradient of the last step. The programs fetch and send `K`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

import msgspec
import numpy as np

from weft.api.store import GRADIENT_SUFFIX, gradient_key
from weft_graph.program import Update
from weft_graph.rules.graph import rule_graph_from_json
from weft_kernels.blocks import whole_blocks
from weft_kernels.cuda.module import has_kernels
from weft_kernels.cuda.pointwise import NotTraceableError
from weft_kernels.cuda.rules import FusedRule, apply_built_in, has_rule
from weft_kernels.kernel import Array
from weft_kernels.rules.record import Apply, Hyper, Rule, State
from weft_kvstore.description.records import KeyDescription, Mode, StoreDescription
from weft_kvstore.hyper import KeyHyper
from weft_worker.device import CpuDevice, Device
from weft_worker.errors import TaskError

# --- Which they are, by the store's description -----------------------------------------------------------------------


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


# --- The rule as it runs: on a GPU one kernel updates a key; a rule without one runs on the host ----------------------
# So does every rule where this project's kernels do not run.


@dataclass(frozen=True, slots=True)
class Updating:
    """`apply` is `rule`'s, on arrays of the `device`; started within the device's `use`."""

    rule: Rule
    device: Device
    apply: Apply


def on_host(rule: Rule) -> Updating:
    """The rule as it is."""
    return Updating(rule, CpuDevice(), rule.apply)


def updating_on(device: Device, description: StoreDescription, rule: Rule, keys: Iterable[KeyDescription]) -> Updating:
    """`rule`, the description's, on the device where it can update `keys` there, else on the host."""
    if rule.whole or not has_kernels(device.xp):
        return on_host(rule)
    document = description.rule
    if isinstance(document, Mapping) and "graph" in document:
        fused = FusedRule(rule_graph_from_json(document))
        try:
            for dtype in {key.dtype for key in keys}:
                fused.fused(np.dtype(dtype))
        except NotTraceableError:
            return on_host(rule)
        return Updating(rule, device, _applied(partial(fused.apply, device.xp)))
    if not has_rule(rule.name):
        return on_host(rule)
    return Updating(rule, device, _applied(partial(apply_built_in, device.xp, rule.name)))


def _applied(call: Callable[..., None]) -> Apply:
    def apply(weight: Array, gradient: Array, state: State, step: int, hyper: Hyper) -> None:
        call(weight, gradient, state, step=step, hyper=hyper)

    return apply


# --- Their values -----------------------------------------------------------------------------------------------------


def hyper_of_key(key: KeyDescription, updating: Updating, description: StoreDescription) -> KeyHyper:
    """The rule's numbers for the key, step by step."""
    return KeyHyper({**updating.rule.hyper, **description.hyper}, key.multipliers)


class LocalKey:
    """To be used by one thread, within the device's `use`. There is no value before `begin`.

    The rule runs on the whole key at once: flat where it is pointwise, as on a shard's slices: the same bits on a CPU.
    """

    def __init__(self, key: KeyDescription, updating: Updating, description: StoreDescription) -> None:
        rule, self._device, self._apply = updating.rule, updating.device, updating.apply
        self._hyper = hyper_of_key(key, updating, description)
        self.shape = tuple(key.shape)
        self.size = key.size
        self._worked_shape = self.shape if rule.whole else (key.size,)
        self._starts = rule.state
        self.dtype = np.dtype(key.dtype)
        self._weight: Array = np.empty(0, self.dtype)
        self._state: State = {}
        self._room: tuple[Array, State] | None = None

    def lie_in(self, weight: Array, state: State) -> None:
        """Has the value and the state lie in these arrays, which are flat, from `begin` on."""
        self._room = weight, state

    def begin(self, first: Array) -> None:
        """Takes over the first value, an array of the host's."""
        xp = self._device.xp
        if self._room is not None:
            self._weight, self._state = self._room
            self._weight[...] = first.reshape(-1)
            for name, array in self._state.items():
                array[...] = self._starts[name]
            return
        self._weight = self._device.to_device(first).reshape(self._worked_shape)
        self._state = {name: xp.full(self._worked_shape, start, self.dtype) for name, start in self._starts.items()}

    def restore(self, value: Array, state: Mapping[str, Array]) -> None:
        """Takes over a value and the optimizer's state, arrays of the host's in any shape."""
        self.begin(value)
        for name, array in state.items():
            self._state[name][...] = self._device.to_device(array).reshape(self._worked_shape)

    def update(self, gradient: Array, step: int) -> None:
        """Applies the rule with the merged gradient of that step, an array of the host's, which is used up."""
        self.update_there(self._device.to_device(gradient), step)

    def update_there(self, gradient: Array, step: int) -> None:
        """The same with a gradient on the device, in one piece."""
        with np.errstate(all="ignore"):  # What overflows is the user's to see in the values.
            there = gradient.reshape(self._worked_shape)
            self._apply(self._weight, there, self._state, step + 1, self._hyper.at(step))

    def set(self, value: Array) -> None:
        """Makes an array of the host's the value; the optimizer's state stays."""
        self._weight[...] = self._device.to_device(value).reshape(self._worked_shape)

    @property
    def weight(self) -> Array:
        """The value itself, on the device: the next update writes there."""
        return self._weight.reshape(self.shape)

    def value(self) -> Array:
        """A copy on the host, for whoever asked."""
        return self._device.to_host(self.value_there())

    def value_there(self) -> Array:
        """A copy on the device: kernels may read it after the next update was started."""
        return self.weight.copy()

    def state(self) -> Mapping[str, Array]:
        """Copies on the host, by the rule's names."""
        return {name: self._device.to_host(array.reshape(self.shape).copy()) for name, array in self._state.items()}


@dataclass(frozen=True, slots=True)
class AdjacentKeys:
    """Keys of the host that lie one behind the other, so that one call of the rule updates all of them."""

    gradients: Mapping[str, Array]
    """Where each key's gradient is to be, in the key's shape."""
    _weight: Array
    _gradient: Array
    _state: State
    _apply: Apply
    _hyper: KeyHyper

    @classmethod
    def of(
        cls, described: Iterable[KeyDescription], keys: Mapping[str, LocalKey], updating: Updating, hyper: KeyHyper
    ) -> AdjacentKeys:
        """Keys of one type with the same numbers, before they have a value; the rule is one that may be cut anywhere,
        and so may be given them together."""
        listed = [key for key in described if key.size]
        dtype, ends = np.dtype(listed[0].dtype), np.cumsum([whole_blocks(key.size) for key in listed]).tolist()
        weight, gradient = np.zeros(ends[-1], dtype), np.zeros(ends[-1], dtype)
        state: State = {name: np.zeros(ends[-1], dtype) for name in updating.rule.state}
        gradients: dict[str, Array] = {}
        for key, begin in zip(listed, [0, *ends], strict=False):
            some = slice(begin, begin + key.size)
            keys[key.key].lie_in(weight[some], {name: array[some] for name, array in state.items()})
            gradients[key.key] = gradient[some].reshape(key.shape)
        return cls(gradients, weight, gradient, state, updating.rule.apply_over or updating.apply, hyper)

    def take(self, gradients: Mapping[str, Array]) -> None:
        """Has the gradients, all of them, where the next `update` reads them and may write."""
        for name, array in self.gradients.items():
            if gradients[name] is not array:
                np.copyto(array, gradients[name])

    def update(self, step: int) -> None:
        """As `LocalKey.update_there` of each key."""
        with np.errstate(all="ignore"):
            self._apply(self._weight, self._gradient, self._state, step + 1, self._hyper.at(step))
