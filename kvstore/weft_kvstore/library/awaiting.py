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
    """Returns when every shard has welcomed the slot, or at once where `wait_s` is 0; a wait that takes long is logged.

    Raises StoreLostError after `wait_s`, which names the shard and says how one is started, and StoreRefusedError as
    soon as one will never talk with it.
    """
    begun, said = time.monotonic(), False
    while wait_s > 0:
        links = client.statistics().links
        if all(link.welcomed for link in links):
            return
        for link in links:
            if link.refused:
                raise StoreRefusedError(f"slot {slot}: {link.trouble}")
        waited = time.monotonic() - begun
        missing = [shard for shard, link in enumerate(links) if not link.welcomed]
        told = next((links[shard].trouble for shard in missing if links[shard].trouble), None)
        told = told or f"{_named(description, missing)} did not answer"
        if waited >= wait_s:
            raise StoreLostError(f"slot {slot} has waited {waited:.0f} s: {told}; {HINT}")
        if not said and waited >= SAID_AFTER_S:
            _log.warning("slot %d waits, up to %g s: %s; %s", slot, wait_s, told, HINT)
            said = True
        time.sleep(BETWEEN_S)


def _named(description: StoreDescription, shards: list[int]) -> str:
    named = ", ".join(f"{shard} at {description.shards[shard]}" for shard in shards)
    return f"shard{'s' if len(shards) > 1 else ''} {named}"
