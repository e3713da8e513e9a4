"""What agents show that they are who they say: a credential for each agent, issued as it registers, and one for each
allocation, which comes with its orders.

A credential names whom it is for and has a code made of that by one key, so nothing but the key is kept, beside the
database, and credentials outlive the server's process as agents do.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Literal

from weft.agent.private import opener
from weft.api.agent import Orders, Registered

KEY_FILE = "agents.key"
KEY_BYTES = 32
PREFIX = "weft_"
"""What users' secrets begin with, so that tools that look for leaked ones find them."""

Kind = Literal["agents", "allocations"]


class Credentials:
    """Issues credentials and tells whose they are, once `load` was called."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / KEY_FILE
        self._key = b""

    def load(self) -> None:
        """Reads the key, or makes one. Blocks; raises OSError, ValueError where the file is damaged."""
        self._key = secrets.token_bytes(KEY_BYTES)
        self.keep()
        key = bytes.fromhex(self._file.read_text("ascii").strip())
        if len(key) != KEY_BYTES:
            raise ValueError(f"{self._file} is damaged: delete it, and agents register anew")
        self._key = key

    def keep(self) -> None:
        """Writes the key where there is no file of one. Blocks; raises OSError."""
        with suppress(FileExistsError), open(self._file, "xb", opener=opener) as file:
            file.write(self._key.hex().encode())

    def issue(self, kind: Kind, identifier: str) -> str:
        return f"{kind}.{identifier}.{self._code(kind, identifier)}"

    def holder(self, token: str) -> tuple[str, str] | None:
        """Whose credential it is, as (kind, id); None for what was not issued here."""
        kind, _, rest = token.partition(".")
        identifier, _, code = rest.rpartition(".")
        if not (kind and identifier and code.isascii()) or not self._key:
            return None
        return (kind, identifier) if hmac.compare_digest(self._code(kind, identifier), code) else None

    def registered(self, answer: Registered) -> Registered:
        """The answer to a registration, with the agent's credential."""
        return answer.model_copy(update={"token": self.issue("agents", answer.id)})

    def orders(self, orders: Orders) -> Orders:
        """The same with a credential in each allocation."""
        told = [each.model_copy(update={"token": self.issue("allocations", each.id)}) for each in orders.allocations]
        return orders.model_copy(update={"allocations": told})

    def secret(self, what: str, key: str) -> str:
        """A user's secret that is made anew by the same call: by what it asks for and its idempotency key."""
        return f"{PREFIX}{self._code('users', f'{what}.{key}')}"

    def _code(self, kind: str, identifier: str) -> str:
        return hmac.new(self._key, f"{kind}.{identifier}".encode(), hashlib.sha256).hexdigest()


def is_credential(token: str) -> bool:
    """Whether it looks like one, of whatever server."""
    return token.startswith(("agents.", "allocations.")) and token.count(".") == 2
