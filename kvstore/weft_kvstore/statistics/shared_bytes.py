"""Payloads that passed through shared memory, and no socket."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class SharedBytes:
    """Bytes `received` from clients of this host, and `sent` to them."""

    received: int = 0
    sent: int = 0
