"""Waits until the shards of a store are there: processes start in any order."""

from __future__ import annotations

import logging
import time
from typing import Final

from weft_kvstore.client.store_client import StoreClient
from weft_kvstore.description.records import StoreDescription
from weft_kvstore.errors import StoreLostError, StoreRefusedError

BETWEEN_S: Final = 0.02
"""Between two looks at what shards have answered."""

SAID_AFTER_S: Final = 2.0
"""A process that waits longer says for whom."""

HINT: Final = "a shard is started by: python -m weft_kvstore --description FILE --shard NUMBER"

_log = logging.getLogger("weft.store")


def await_shards(client: StoreClient, description: StoreDescription, slot: int, wait_s: float) -> None:
    """Returns when every shard has welcomed the slot, or at once where `wait_s` is 0; a wait that takes long is logged,
    again when it is for others, and so is its end.

    Raises StoreLostError after `wait_s`, which names the shard and says how one is started, or StoreRefusedError where
    another process has the slot; and StoreRefusedError as soon as a shard will never talk with it.
    """
    begun = time.monotonic()
    said: object = None
    say_at = begun + SAID_AFTER_S
    while wait_s > 0:
        links = client.statistics().links
        waited = time.monotonic() - begun
        if all(link.welcomed for link in links):
            if said is not None:
                _log.warning("slot %d goes on after %.0f s: every shard talks with it", slot, waited)
            return
        for link in links:
            if link.refused:
                raise StoreRefusedError(f"slot {slot}: {link.trouble}")
        missing = [shard for shard, link in enumerate(links) if not link.welcomed]
        taken = next((link.trouble for link in links if link.taken), None)
        told = taken or next((links[shard].trouble for shard in missing if links[shard].trouble), None)
        told = told or f"{_named(description, missing)} did not answer"
        told = told if taken else f"{told}; {HINT}{' --curve-keys FILE' if description.curve_keys else ''}"
        if waited >= wait_s:
            error = StoreLostError if taken is None else StoreRefusedError
            raise error(f"slot {slot} has waited {waited:.0f} s: {told}")
        if time.monotonic() >= say_at:
            if (missing, taken) != said:
                _log.warning("slot %d waits, up to %g s: %s", slot, wait_s, told)
            said, say_at = (missing, taken), time.monotonic() + SAID_AFTER_S
        time.sleep(BETWEEN_S)


def _named(description: StoreDescription, shards: list[int]) -> str:
    named = ", ".join(f"{shard} at {description.shards[shard]}" for shard in shards)
    return f"shard{'s' if len(shards) > 1 else ''} {named}"
