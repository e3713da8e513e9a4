"""What a slot waits for beside values: the shards, when it connects, and the other slots, at barriers."""

from __future__ import annotations

import logging
import time
from concurrent.futures import Future
from functools import partial
from typing import Any, Final

import numpy as np

from weft_kvstore.client.core import noted
from weft_kvstore.client.operation import KeyOperation
from weft_kvstore.client.plan import KeyList
from weft_kvstore.client.poller import uninterrupted
from weft_kvstore.client.store_client import Store, StoreClient
from weft_kvstore.description.records import StoreDescription
from weft_kvstore.errors import StoreClosedError, StoreLostError, StoreRefusedError
from weft_kvstore.futures import StoreFuture, driver_of, finished, hand_on, joined, nothing, on_end, then
from weft_kvstore.wire.messages import PayloadKind, Reading

_log = logging.getLogger("weft.store")

# --- Waits until the shards of a store are there: processes start in any order ----------------------------------------


BETWEEN_S: Final = 0.02
"""Between two checks of what the shards have answered."""

WARN_AFTER_S: Final = 2.0
"""A process that waits longer says for whom."""

HINT: Final = "a shard is started by: python -m weft_kvstore --description FILE --shard NUMBER"


def await_shards(client: StoreClient, description: StoreDescription, slot: int, wait_s: float) -> None:
    """Returns when every shard has welcomed the slot, or at once where `wait_s` is 0; a wait that takes long is logged,
    again when it is for others, and so is its end.

    Raises StoreLostError after `wait_s`, which names the shard and says how one is started, or StoreRefusedError where
    another process has the slot; and StoreRefusedError as soon as a shard will never talk with it.
    """
    begun = time.monotonic()
    said: object = None
    say_at = begun + WARN_AFTER_S
    while wait_s > 0:
        links = client.statistics().links
        waited = time.monotonic() - begun
        if all(link.welcomed for link in links):
            if said is not None:
                _log.warning("slot %d goes on after %.0f s: every shard talks with it", slot, waited)
            return
        if (reason := client.end_reason()) is not None:
            raise StoreClosedError(f"slot {slot}: {reason}")
        for link in links:
            if link.refused:
                raise StoreRefusedError(f"slot {slot}: {link.trouble}")
        missing = [shard for shard, link in enumerate(links) if not link.welcomed]
        taken = detail = next((link.trouble for link in links if link.taken), None)
        if detail is None:
            detail = next((links[shard].trouble for shard in missing if links[shard].trouble), None)
            named = ", ".join(f"{shard} at {description.shards[shard]}" for shard in missing)
            detail = detail or f"shard{'s' if len(missing) > 1 else ''} {named} did not answer"
            detail = f"{detail}; {HINT}{' --curve-keys FILE' if description.curve_keys else ''}"
        if waited >= wait_s:
            error = StoreLostError if taken is None else StoreRefusedError
            raise error(f"slot {slot} has waited {waited:.0f} s: {detail}")
        if time.monotonic() >= say_at:
            if (missing, taken) != said:
                _log.warning("slot %d waits, up to %g s: %s", slot, wait_s, detail)
            said, say_at = (missing, taken), time.monotonic() + WARN_AFTER_S
        time.sleep(BETWEEN_S)


# --- The barriers of one slot, one after the other: each begins once all slots have met at the one before -------------


class Barriers:
    """Each begins once the one before has ended, and fails with it. Where the push of one failed, the next call makes
    it again: no number is ever left out, or nobody could meet any more."""

    def __init__(self, store: Store, key: KeyList) -> None:
        self._store = store
        self._key = key
        self._number: int | None = None
        """The next barrier's; None: the store has not said yet where the others are."""
        self._last: Future[None] = finished(None)

    def meet(self) -> Future[None]:
        """Ends when every slot has called it as often."""
        outcome: StoreFuture[None] = StoreFuture()
        with uninterrupted():
            try:
                # No lock, but one statement: another signal's handler may call it in the middle of it.
                before, self._last = self._last, outcome
                met = then(finished(None) if before.done() else before, self._begin)
                outcome.driver = driver_of(met)
                on_end(met, partial(hand_on, outcome))
            except BaseException as error:  # Else the next one would wait for ever.
                if not outcome.done():
                    outcome.set_exception(noted(error))
                raise
        return outcome

    def _begin(self, _: None) -> Future[None]:
        if self._number is not None:
            return self._arrive(self._number)
        known = self._store.submit(KeyOperation(self._key, version=0, reading=Reading.SETTLED, with_versions=True))
        return then(known, lambda found: self._arrive(int(found.lowest[0])))

    def _arrive(self, number: int) -> Future[None]:
        self._number = number
        operation = KeyOperation(
            self._key,
            payload_kind=PayloadKind.GRADIENT,
            step=number,
            arrays=[np.zeros((), np.float32)],
            version=number + 1,
            reading=Reading.SETTLED,
        )
        met = self._store.submit(operation)

        def ended(_: Future[Any]) -> None:
            self._number = number + operation.has_arrived

        on_end(met, ended)
        return joined([met], nothing)
