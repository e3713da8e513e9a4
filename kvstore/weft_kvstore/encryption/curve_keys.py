"""Pairs of CURVE keys, and the keys of an encrypted link at the client's end. Pure."""

from __future__ import annotations

import string
from dataclasses import dataclass, field
from typing import Final

# --- A pair of CURVE keys: the public one names its owner, the secret one proves it -----------------------------------


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
    """A wrong key or pair. The text never has a secret key."""


@dataclass(frozen=True, slots=True)
class CurveKeys:
    """Both in Z85; the secret one is never in a text. Raises CurveKeyError for a wrong key."""

    public: str
    secret: str = field(repr=False)

    def __post_init__(self) -> None:
        # Neither is shown, since a user may give the secret key as the public one.
        for which, key in (("public", self.public), ("secret", self.secret)):
            if not _is_key(key):
                raise CurveKeyError(f"the {which} key is not {KEY_CHARACTERS} characters of Z85")


def check_public(key: str) -> None:
    """Raises CurveKeyError for a wrong key, and for zeros. The key is not shown, since it may be a secret one given by
    mistake."""
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
