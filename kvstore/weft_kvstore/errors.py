"""What fails in a store."""

from __future__ import annotations


class StoreError(Exception):
    """Something about the store failed; the message names slot, key and step where there are any.

    StoreError
    +-- StoreLostError     a shard, or a slot that a merge waits for, is silent or gone
    +-- StoreTimeoutError  a deadline passed; the message says who is missing
    +-- StoreClosedError   the store was closed before the call had ended
    +-- StoreRefusedError  the shard refused what this client sent: our fault
        +-- StorePassedError  a value was asked for at exactly a version that has passed
    """


class StoreLostError(StoreError):
    pass


class StoreTimeoutError(StoreError):
    pass


class StoreClosedError(StoreError):
    pass


class StoreRefusedError(StoreError):
    pass


class PushedTwiceError(StoreRefusedError):
    """A push of compressed keys whose step is being pushed already, or has arrived: it counts once."""


class StorePassedError(StoreRefusedError):
    pass


class OpenStoppedError(StoreError):
    """The job was not wanted any more before it was open."""


class PushRefusedError(Exception):
    """A push, a declaration or a set contradicts what its shard has; the text names slot, key, slice and step."""
