"""The process that a store belongs to: its threads are not in what is forked from it."""

from __future__ import annotations

import os

from weft_kvstore.errors import StoreError


class OwnProcess:
    """Remembers the process that made it."""

    __slots__ = ("_number",)

    def __init__(self) -> None:
        self._number = os.getpid()

    @property
    def is_here(self) -> bool:
        """Whether this is still that process, and no child of it."""
        return os.getpid() == self._number

    def check(self) -> None:
        """Raises StoreError in a child: nobody there would ever end a future."""
        if not self.is_here:
            raise StoreError(
                f"this store belongs to process {self._number}, this is process {os.getpid()}: connect after the fork"
            )
