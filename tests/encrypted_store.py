"""Shards in this process whose links are encrypted, each with keys of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from weft_kvstore.description.records import StoreDescription
from weft_kvstore.encryption.curve_authenticator import CurveAuthenticator
from weft_kvstore.encryption.curve_keys import CurveKeys
from weft_kvstore.encryption.key_files import new_curve_keys
from weft_kvstore.serving.shard_server import ShardServer
from weft_kvstore.settings import LinkSettings

DEFAULTS = LinkSettings()
APART = LinkSettings(same_host=False)
"""Payloads pass the links, as they do between two hosts."""


@contextmanager
def encrypted(
    description: StoreDescription,
    clients: Path | None = None,
    *,
    settings: LinkSettings = DEFAULTS,
    keys: Sequence[CurveKeys] | None = None,
) -> Iterator[tuple[StoreDescription, list[ShardServer]]]:
    """The description with the shards' addresses and public keys, and the shards. `clients`: the directory of those
    that are let in."""
    keys = keys or [new_curve_keys() for _ in description.shards]
    with ExitStack() as stack:
        servers = [
            stack.enter_context(ShardServer(settings=settings, authenticator=CurveAuthenticator(one, clients)))
            for one in keys
        ]
        found = msgspec.structs.replace(
            description,
            shards=tuple(server.endpoint for server in servers),
            curve_keys=tuple(one.public for one in keys),
        )
        for shard, server in enumerate(servers):
            server.open(found, shard)
        yield found, servers
