"""How a connection ends before its first message, where the two sides do not have the keys for each other. Pure."""

from __future__ import annotations

from enum import Enum


class Handshake(Enum):
    """`NOT_LET_IN`: the shard knows no such key. `UNLIKE`: one side encrypts, the other does not. `BROKEN_OFF`: nobody
    says why; a shard that has another key than was thought can say nothing that would be understood."""

    NOT_LET_IN = "not let in"
    UNLIKE = "unlike"
    BROKEN_OFF = "broken off"

    def told(self, shard: int, *, encrypted: bool) -> str:
        """What a person should look at. `encrypted`: whether this side does."""
        if self is Handshake.NOT_LET_IN:
            return "it does not let in a client with this CURVE key"
        if self is Handshake.BROKEN_OFF:
            return f"it broke off the handshake each time: it may have another CURVE key than curve_keys[{shard}] says"
        if encrypted:
            return "its links are not encrypted, and the description has curve_keys for them"
        return "its links are encrypted, and the description has no curve_keys for them"
