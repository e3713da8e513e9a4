"""docs/same-host.md says what the code does: every packet and bound is on the page; the bytes are as they were."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft_kvstore.same_host.handover import (
    MAX_PACKET_BYTES,
    MAX_WAITING,
    OFFER_TIMEOUT_S,
    OFFER_VERSION,
    Answer,
    Offer,
    address_of,
    decode_answer,
    decode_offer,
    encode,
    refusal,
)
from weft_kvstore.same_host.layout import ALIGNMENT
from weft_kvstore.same_host.memory import ArenaError

PAGE = (Path(__file__).parents[3] / "docs" / "same-host.md").read_text()

OFFER = Offer(1, bytes(range(16)), 8192)
OFFER_BYTES = bytes.fromhex(
    "84 a4 74797065 a5 6f66666572 a7 76657273696f6e 01 a6 7469636b6574 c4 10 000102030405060708090a0b0c0d0e0f"
    "a6 6e6279746573 cd 2000"
)
ANSWER_BYTES = bytes.fromhex("83 a4 74797065 a6 616e73776572 a8 6163636570746564 c3 a6 726561736f6e a0")


def test_the_bytes_are_as_they_were() -> None:
    assert encode(OFFER) == OFFER_BYTES
    assert decode_offer(OFFER_BYTES) == OFFER
    assert encode(Answer(accepted=True)) == ANSWER_BYTES
    assert decode_answer(ANSWER_BYTES) == Answer(accepted=True)


def test_the_page_names_every_field_and_bound() -> None:
    for packet in (Offer, Answer):
        (row,) = [line for line in PAGE.splitlines() if line.startswith(f"| `{packet.__struct_config__.tag}` |")]
        for field in packet.__struct_fields__:
            assert f"`{field}`" in row
    assert f"`version` ({OFFER_VERSION})" in PAGE
    assert f"at most {MAX_PACKET_BYTES:,} bytes" in PAGE
    assert f"within {OFFER_TIMEOUT_S:.0f} s of connecting; {MAX_WAITING} may wait" in PAGE
    assert f"{ALIGNMENT}-byte boundary" in PAGE
    assert f"`{address_of(bytes(16))[1:-32].decode()}` and 32 hexadecimal digits" in PAGE


@given(st.text(max_size=5000))
def test_any_reason_fits_into_a_packet(reason: str) -> None:
    packet = encode(refusal(reason))
    assert len(packet) <= MAX_PACKET_BYTES
    assert decode_answer(packet).reason == reason[: len(decode_answer(packet).reason)]


@given(st.binary(max_size=200))
def test_no_bytes_do_harm(packet: bytes) -> None:
    for decode in (decode_offer, decode_answer):
        try:
            decode(packet)
        except ArenaError:
            continue


@pytest.mark.parametrize("place", range(len(OFFER_BYTES)))
def test_an_offer_that_was_cut_is_none(place: int) -> None:
    with pytest.raises(ArenaError, match="no offer"):
        decode_offer(OFFER_BYTES[:place])
