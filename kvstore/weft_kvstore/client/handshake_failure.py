"""How a connection ends before its first message, where the two sides do not have the keys for each other. Pure."""

from __future__ import annotations

from enum import Enum


class HandshakeFailure(Enum):
    """`UNAUTHORIZED`: the shard knows no such key. `MECHANISM_MISMATCH`: one side encrypts, the other does not.
    `BROKEN_OFF`: nobody says why; a shard that has another key than was thought can say nothing that would be
    understood."""

    UNAUTHORIZED = "unauthorized"
    MECHANISM_MISMATCH = "mechanism mismatch"
    BROKEN_OFF = "broken off"

    def told(self, key: str | None) -> str:
        """What a person should look at. `key`: this client's public one; None where it does not encrypt."""
        if self is HandshakeFailure.UNAUTHORIZED:
            told = (
                f"it does not let in a client with the CURVE key {key}: no NAME.key in its directory of clients has it"
            )
            return f"{told} (who connects without curve_keys has one that no shard knows)"
        if self is HandshakeFailure.BROKEN_OFF:
            told = (
                "it broke off the handshake each time: it may have another CURVE key than the description's curve_keys"
            )
            return f"{told} say, or not have started behind a proxy"
        if key is not None:
            return "its links are not encrypted, and the description has curve_keys for them"
        return "its links are encrypted, and the description has no curve_keys for them"
