"""Pairs of CURVE keys, and the keys of an encrypted link at the client's end. Pure."""

from __future__ import annotations

import string
from dataclasses import dataclass, field
from typing import Final

# --- A pair of CURVE keys: the public one says who somebody is, the secret one proves it ------------------------------


KEY_CHARACTERS: Final = 40
"""Of a key of 32 bytes, in ZeroMQ's Z85: four bytes are five characters."""

_DIGITS: Final = {
    character: digit
    for digit, character in enumerate(
        string.digits + string.ascii_lowercase + string.ascii_uppercase + ".-:+=^!/*?&<>()[]{}@%$#"
    )
}
"""Of Z85, by ZeroMQ's RFC 32."""


class CurveKeyError(ValueError):
    """What was given is no key, or no pair. The text has no secret."""


@dataclass(frozen=True, slots=True)
class CurveKeys:
    """Both are in Z85; the secret one is in no text that this makes. Raises CurveKeyError for what is no key."""

    public: str
    secret: str = field(repr=False)

    def __post_init__(self) -> None:
        # Neither is shown: who mixes the two up gives the secret one as the public one.
        for which, key in (("public", self.public), ("secret", self.secret)):
            if not _is_key(key):
                raise CurveKeyError(f"the {which} key is not {KEY_CHARACTERS} characters of Z85")


def check_public(key: str) -> None:
    """Raises CurveKeyError for what is no key, and for zeros, which are nobody's. It is not shown: who mixes the two up
    has given the secret one."""
    if not _is_key(key):
        raise CurveKeyError(f"no CURVE key, which has {KEY_CHARACTERS} characters of Z85")
    if not set(key) - {"0"}:
        raise CurveKeyError("zeros are nobody's CURVE key")


def _is_key(text: str) -> bool:
    if len(text) != KEY_CHARACTERS or not _DIGITS.keys() >= set(text):
        return False
    groups = (text[begin : begin + 5] for begin in range(0, KEY_CHARACTERS, 5))
    return all(sum(_DIGITS[one] * 85 ** (4 - at) for at, one in enumerate(group)) < 1 << 32 for group in groups)


# --- The keys of an encrypted link, at the client's end ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LinkKeys:
    """The client's own, and the shard's public one."""

    own: CurveKeys
    shard: str
