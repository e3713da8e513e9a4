"""Sets parameters in the store from a safetensors document: dense keys whole, tables by runs of rows."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import BinaryIO, Final

from weft_kvstore.description.records import KeyDescription, is_given
from weft_kvstore.snapshot_files import Tensor, TensorFile, TensorFileError
from weft_worker.checkpointer import ids_of
from weft_worker.pace import Pace
from weft_worker.patience import Tell, patiently, result_of
from weft_worker.run_store import RunStore

AHEAD: Final = 3
"""Calls under way while the next piece is read."""

FIRST_VALUES_DEADLINE_S: Final = 1800.0
"""For the worker that brings given values to have set them: they may be gigabytes, from far away."""


@dataclass(frozen=True, slots=True)
class ValueSetter:
    """What can be set: `keys` of the `store`, by name, but for `local`, which every worker updates by itself."""

    store: RunStore
    keys: Mapping[str, KeyDescription]
    local: Collection[str]
    timeout_s: float
    _held_from: dict[str, int] = field(default_factory=dict)
    """The version from which a parameter's last set value holds."""

    def set_all(self, file: BinaryIO, version: int, names: Sequence[str] | None = None) -> None:
        """Sets the parameters of the document in `file` (those of `names` alone), to hold at `version`.

        When it returns, every shard has acknowledged them. Raises TensorFileError before anything is set: no document,
        a tensor that is no parameter, of another type, or missing; StoreError, OSError.
        """
        document = TensorFile(file)
        chosen = list(document.tensors) if names is None else list(names)
        for name in chosen:
            self._check(name, document.tensors.get(name), version)
        if not chosen:
            raise TensorFileError("the document holds no tensor")
        under_way: deque[tuple[str, Future[None]]] = deque()
        for name in chosen:
            self._await_earlier(name, version)
            self._held_from[name] = version
            self._set(document, self.keys[name], version, under_way)
        self._await(under_way, 0)

    def await_given(self, tell: Tell) -> None:
        """Waits until the first values of all keys that are given have been set. Raises StoreError."""
        for key in filter(is_given, self.keys.values()):
            pace = Pace(key.key, key.rows)
            patiently(
                lambda pace=pace: pace.reached(self.store, 0),  # type: ignore[misc]  # bound now, not when called
                f"waiting for the given value of key {key.key!r}",
                timeout_s=self.timeout_s,
                deadline_s=FIRST_VALUES_DEADLINE_S,
                tell=tell,
            )

    def _await_earlier(self, name: str, version: int) -> None:
        """Until an earlier set value holds: shards keep few that wait, and the steps before are pushed already."""
        earlier = self._held_from.get(name, version)
        if 0 < earlier < version:
            pace = Pace(name, self.keys[name].rows)
            what = f"waiting for key {name!r} to hold what was set for version {earlier}"
            result_of(pace.reached(self.store, earlier), what, self.timeout_s)

    def _check(self, name: str, tensor: Tensor | None, version: int) -> None:
        key = self.keys.get(name)
        if key is None:
            raise TensorFileError(f"tensor {name!r} is no parameter of the job")
        if tensor is None:
            raise TensorFileError(f"parameter {name!r} is not in the document")
        if (tensor.dtype, tensor.shape) != (key.dtype, tuple(key.shape)):
            raise TensorFileError(f"parameter {name!r} is {key.dtype}{list(key.shape)}, the document has {tensor}")
        if version > 0 and name in self.local:
            raise TensorFileError(
                f"parameter {name!r} is updated by every worker itself, and cannot be set while the job runs"
            )

    def _set(
        self, document: TensorFile, key: KeyDescription, version: int, under_way: deque[tuple[str, Future[None]]]
    ) -> None:
        what = f"setting key {key.key!r} at version {version}"
        for ids in ids_of(key):
            values = document.read(key.key) if ids is None else document.read(key.key, int(ids[0]), int(ids[-1]) + 1)
            under_way.append((what, self.store.set(key.key, version, values, ids)))
            self._await(under_way, AHEAD)

    def _await(self, under_way: deque[tuple[str, Future[None]]], most: int) -> None:
        while len(under_way) > most:
            what, future = under_way.popleft()
            result_of(future, what, self.timeout_s)
