"""The keys of an encrypted link, at the client's end."""

from __future__ import annotations

from dataclasses import dataclass

from weft_kvstore.encryption.curve_keys import CurveKeys


@dataclass(frozen=True, slots=True)
class LinkKeys:
    """The client's own, and the shard's public one."""

    own: CurveKeys
    shard: str
