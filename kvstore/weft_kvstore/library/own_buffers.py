"""Arrays for gradients and values where a store has none of its own."""

from __future__ import annotations

from weft_kvstore.arrays.array import Array
from weft_kvstore.client.memory import ClientMemory
from weft_kvstore.description.records import StoreDescription


class OwnBuffers:
    """Arrays of the process's own, by key: a `BufferStore` beside any store."""

    def __init__(self, description: StoreDescription) -> None:
        self._memory = ClientMemory(description.keys, None)
        self._places = {key.key: place for place, key in enumerate(description.keys)}

    def gradient_buffer(self, key: str) -> Array:
        return self._memory.gradient(self._places[key])

    def value_buffer(self, key: str) -> Array:
        return self._memory.value(self._places[key])
