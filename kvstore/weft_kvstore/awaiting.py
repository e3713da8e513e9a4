"""Waits until the shards of a store are there: processes start in any order."""

from __future__ import annotations

import logging
import time
from concurrent.futures import Future
from typing import Any, Final

from weft_kvstore.client import StoreClient
from weft_kvstore.description import StoreDescription
from weft_kvstore.store import StoreError, StoreLostError

BETWEEN_S: Final = 0.1
"""Between two looks at what shards have answered."""

SAID_AFTER_S: Final = 2.0
"""A process that waits longer says for whom."""

HINT: Final = "a shard is started by: python -m weft_kvstore --description FILE --shard NUMBER"

_log = logging.getLogger("weft.store")


def await_shards(client: StoreClient, description: StoreDescription, slot: int, wait_s: float) -> None:
    """Returns when every shard has answered, or at once where `wait_s` is 0; a wait that takes long is logged.

    Raises StoreLostError after `wait_s`, which names the shard and says how one is started, and a shard's refusal.
    """
    begun, said, asked = time.monotonic(), False, _asked(client, description)
    while wait_s > 0:
        told = None
        try:
            if asked is None:
                if all(link.bytes_received for link in client.statistics().links):
                    return
                time.sleep(BETWEEN_S)
            else:
                asked.result(BETWEEN_S)
                return
        except TimeoutError:
            pass
        except StoreError as error:
            told = str(error).rpartition("barrier of step 0: ")[2]
            # "Silent": nobody answers yet, or one who knows nothing of this store yet. Other refusals stay so.
            if "silent for" not in told:
                raise type(error)(f"slot {slot}: {told}") from None
            time.sleep(BETWEEN_S)
            asked = _asked(client, description)
        waited = time.monotonic() - begun
        told = told or f"{_silent(client, description)} did not answer"
        if waited >= wait_s:
            raise StoreLostError(f"slot {slot} has waited {waited:.0f} s: {told}; {HINT}")
        if not said and waited >= SAID_AFTER_S:
            _log.warning("slot %d waits, up to %g s: %s; %s", slot, wait_s, told, HINT)
            said = True


def _asked(client: StoreClient, description: StoreDescription) -> Future[Any] | None:
    """Ends when every shard has answered: a barrier of no key, and of a step that may be over, changes nothing. None
    where steps are committed, for there a barrier is a part of the step; that each shard was heard has to do."""
    return client.barrier(0, []) if description.commit is None else None


def _silent(client: StoreClient, description: StoreDescription) -> str:
    """The shards of which nothing was heard."""
    links = client.statistics().links
    silent = [shard for shard, link in enumerate(links) if not link.bytes_received] or list(range(len(links)))
    named = ", ".join(f"{shard} at {description.shards[shard]}" for shard in silent)
    return f"shard{'s' if len(silent) > 1 else ''} {named}"
