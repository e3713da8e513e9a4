"""What is wrong with memory that two processes are to share."""

from __future__ import annotations

from weft_kvstore.errors import StoreError


class ArenaError(StoreError):
    """An arena cannot be made, is not accepted, or has no such bytes. Payloads can always travel as bytes instead."""
