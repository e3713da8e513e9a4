"""Waits until the shards of a store are there: processes start in any order."""

from __future__ import annotations

import time
from typing import Final

from weft_kvstore.client import StoreClient
from weft_kvstore.description import StoreDescription
from weft_kvstore.store import StoreError, StoreLostError

BETWEEN_S: Final = 0.1
"""Between two questions to shards that are not there."""


def await_shards(client: StoreClient, description: StoreDescription, wait_s: float) -> None:
    """Returns when every shard has answered, or at once where `wait_s` is 0.

    Raises StoreLostError after `wait_s`, which names the shard and says how it is started, and a shard's refusal.
    """
    if not wait_s > 0:
        return
    until = time.monotonic() + wait_s
    while True:
        try:
            if description.commit is None:
                # Of no key and a step that may be over: it changes nothing, and every shard answers it.
                client.barrier(0, []).result(max(until - time.monotonic(), BETWEEN_S))
            elif any(link.bytes_received == 0 for link in client.statistics().links):
                raise StoreLostError(f"{_silent(client, description)} did not answer")
            return
        except TimeoutError:
            raise StoreLostError(f"{_silent(client, description)} did not answer for {wait_s:g} s; {_HINT}") from None
        except StoreError as error:
            if not _may_pass(error) or time.monotonic() >= until:
                raise type(error)(f"{error}; {_HINT}") if _may_pass(error) else error from None
        time.sleep(BETWEEN_S)


_HINT: Final = "a shard is started by: python -m weft_kvstore --description FILE --shard NUMBER"


def _may_pass(error: StoreError) -> bool:
    """Whether nobody answers yet; what was answered and refused stays so."""
    return "silent for" in str(error) or str(error).endswith("did not answer")


def _silent(client: StoreClient, description: StoreDescription) -> str:
    """The shards of which nothing was heard."""
    links = client.statistics().links
    silent = [shard for shard, link in enumerate(links) if not link.bytes_received] or list(range(len(links)))
    named = ", ".join(f"{shard} at {description.shards[shard]}" for shard in silent)
    return f"shard{'s' if len(silent) > 1 else ''} {named}"
