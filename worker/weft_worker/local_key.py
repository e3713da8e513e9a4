"""One key that a worker updates itself: its value and the optimizer's state, on the device that updates it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from weft_kernels.rules.record import State
from weft_kvstore.arrays import Array
from weft_kvstore.description.records import KeyDescription, StoreDescription
from weft_kvstore.hyper import KeyHyper
from weft_worker.updating import Updating


class LocalKey:
    """To be used by one thread, within the device's `use`. There is no value before `begin`.

    The rule runs on the whole key at once: flat where it is pointwise, as on a shard's slices: the same bits on a CPU.
    """

    def __init__(self, key: KeyDescription, updating: Updating, description: StoreDescription) -> None:
        rule, self._device, self._apply = updating.rule, updating.device, updating.apply
        self._hyper = KeyHyper({**rule.hyper, **description.hyper}, key.multipliers)
        self.shape = self._shape = tuple(key.shape)
        self.size = key.size
        self._worked_shape = self._shape if rule.whole else (key.size,)
        self._starts = rule.state
        self.dtype = self._dtype = np.dtype(key.dtype)
        self._weight: Array = np.empty(0, self._dtype)
        self._state: State = {}

    def begin(self, first: Array) -> None:
        """Takes over the first value, an array of the host's."""
        xp = self._device.xp
        self._weight = self._device.to_device(first).reshape(self._worked_shape)
        self._state = {name: xp.full(self._worked_shape, start, self._dtype) for name, start in self._starts.items()}

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
        return self._weight.reshape(self._shape)

    def value(self) -> Array:
        """A copy on the host, for whoever asked."""
        return self._device.to_host(self.value_there())

    def value_there(self) -> Array:
        """A copy on the device: kernels may read it after the next update was started."""
        return self.weight.copy()

    def state(self) -> Mapping[str, Array]:
        """Copies on the host, by the rule's names."""
        return {name: self._device.to_host(array.reshape(self._shape).copy()) for name, array in self._state.items()}
