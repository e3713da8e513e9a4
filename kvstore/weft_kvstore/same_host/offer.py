"""What client and shard say to each other at the door: one packet of MessagePack each way. See `docs/same-host.md`."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from weft_kvstore.same_host.errors import ArenaError
from weft_kvstore.structs import Reader

OFFER_VERSION: Final = 1
NAME_BYTES: Final = 16
TICKET_BYTES: Final = 16
MAX_PACKET_BYTES: Final = 4096
MAX_REASON: Final = 1024
"""Characters of an answer; a shard says at most a quarter, so that any text fits into a packet."""


class Offer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="offer"):
    """The client gives its arena, whose descriptor comes with the packet. `ticket` is the one of its Welcome and says
    whose arena this is; `nbytes` is the arena's length."""

    version: Annotated[int, msgspec.Meta(ge=1, le=255)]
    ticket: Annotated[bytes, msgspec.Meta(min_length=TICKET_BYTES, max_length=TICKET_BYTES)]
    nbytes: Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]


class Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="answer"):
    """The shard has mapped the arena, or says why it has not."""

    accepted: bool
    reason: Annotated[str, msgspec.Meta(max_length=MAX_REASON)] = ""


_encoder = msgspec.msgpack.Encoder()
_offers: Final[Reader[Offer]] = Reader(Offer)
_answers: Final[Reader[Answer]] = Reader(Answer)


def encode(packet: Offer | Answer) -> bytes:
    return _encoder.encode(packet)


def decode_offer(packet: bytes) -> Offer:
    """Raises ArenaError for bytes that are no offer of this version."""
    try:
        offer = _offers.from_msgpack(packet)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ArenaError(f"no offer of an arena: {error}") from error
    if offer.version != OFFER_VERSION:
        raise ArenaError(f"Offer.version: {offer.version}, this shard knows {OFFER_VERSION}")
    return offer


def decode_answer(packet: bytes) -> Answer:
    """Raises ArenaError for bytes that are no answer."""
    try:
        return _answers.from_msgpack(packet)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ArenaError(f"no answer to an offer: {error}") from error


def refusal(reason: str) -> Answer:
    return Answer(accepted=False, reason=reason[: MAX_REASON // 4])


def address_of(name: bytes) -> bytes:
    """Where the door of this name stands: Linux's abstract names, which no file system holds and which are seen within
    one network namespace. Raises ArenaError for what is no name."""
    if len(name) != NAME_BYTES:
        raise ArenaError(f"a door's name has {NAME_BYTES} bytes, not {len(name)}")
    return b"\0weft-same-host-" + name.hex().encode()
