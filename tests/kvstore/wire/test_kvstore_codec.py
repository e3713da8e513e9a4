"""The codec: golden bytes, and what it does with bytes that are no message."""

from __future__ import annotations

import contextlib
from itertools import accumulate
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store_messages import REPLIES, REQUESTS
from store_raw import SENT, row_of
from weft_kvstore.wire import messages as m
from weft_kvstore.wire.codec import (
    FORMAT_VERSION,
    MAGIC,
    MAX_HEADER_BYTES,
    ProtocolError,
    buffers_at,
    decode_reply,
    decode_request,
    encode,
    push_segments,
)

GOLDEN = Path(__file__).parent / "golden"
PREFIX = MAGIC + bytes([FORMAT_VERSION]) + bytes(8)
ALL = {**REQUESTS, **REPLIES}


def golden(name: str) -> bytes:
    return bytes.fromhex((GOLDEN / f"{name}.hex").read_text())


@pytest.mark.parametrize("name", ALL)
def test_a_message_has_the_bytes_that_were_written_down(name: str) -> None:
    message, payload = ALL[name]
    parts = encode(message, payload)
    assert bytes(parts[0]) == golden(name)
    assert parts[1:] == ([] if payload is None else [payload])


@pytest.mark.parametrize("name", ALL)
def test_the_bytes_that_were_written_down_are_read(name: str) -> None:
    message, payload = ALL[name]
    decode = decode_request if name in REQUESTS else decode_reply
    found, bytes_of, _ = decode([golden(name)] if payload is None else [golden(name), payload])
    assert found == message
    assert bytes(bytes_of) == (payload or b"")


def test_every_message_has_golden_bytes() -> None:
    kinds = {type(message) for message, _ in ALL.values()}
    assert kinds == set(m.Request.__args__) | set(m.Reply.__args__)
    assert {path.stem for path in GOLDEN.glob("*.hex")} == set(ALL)


@pytest.mark.parametrize("name", sorted(set(REPLIES) - {"acknowledge-reply"}))
def test_a_shard_does_not_read_what_only_shards_say(name: str) -> None:
    message, payload = REPLIES[name]
    with pytest.raises(ProtocolError, match="header"):
        decode_request(encode(message, payload))


@pytest.mark.parametrize("name", sorted(set(REQUESTS) - {"acknowledge"}))
def test_a_client_does_not_read_what_only_clients_say(name: str) -> None:
    message, payload = REQUESTS[name]
    with pytest.raises(ProtocolError, match="header"):
        decode_reply(encode(message, payload))


def pushed(*rows: dict[str, object], **changes: object) -> list[bytes]:
    """A push of these rows, each with changed fields."""
    row = {"count": 1, "nbytes": 4}
    segments = [row_of(SENT, **{**row, **one}) for one in rows or ({},)]  # type: ignore[arg-type]  # wrong ones too
    return [PREFIX + msgspec.msgpack.encode({"type": "push", "frame": 1, "segments": segments, **changes}), b"abcd"]


def asked(*ask: object) -> list[bytes]:
    return [PREFIX + msgspec.msgpack.encode({"type": "pull", "asks": [ask]})]


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        ([], "1 or 2 parts, not 0"),
        ([b"", b"", b""], "1 or 2 parts, not 3"),
        ([b""], "header: begins with b''"),
        ([b"HTTP/1.1"], "header: begins with b'HTTP'"),
        ([MAGIC], "format version None"),
        ([MAGIC + b"\x03"], "format version 3, this side speaks 15"),
        ([MAGIC + b"\x0a\x80"], "format version 10, this side speaks 15"),
        ([PREFIX], "header: "),
        ([PREFIX + b"\x80"], "`type`"),
        ([PREFIX + msgspec.msgpack.encode({"type": "gift"})], "'gift'"),
        ([PREFIX + b"\xc1" * 9], "header: "),
        ([PREFIX + bytes(MAX_HEADER_BYTES)], f"more than {MAX_HEADER_BYTES}"),
        ([PREFIX + msgspec.msgpack.encode({"type": "ping", "more": 1})], "`more`"),
        ([*encode(m.Ping()), b"x"], "Ping has none, 1 bytes came"),
        (pushed()[:1], "Push has one, none came"),
        (pushed(frame=-1), r"\$\.frame"),
        (pushed(frame="1"), r"\$\.frame"),
        (pushed({}, {"bucket": -1}), r"\$\.segments\[1\]\[2\]"),
        (pushed({"step": 2**63}), r"\$\.segments\[0\]\[3\]"),
        (pushed({"payload_kind": 5}), r"enum value 5 - at `\$\.segments\[0\]\[0\]"),
        (pushed(segments=[[0] * 7]), r"length 8.* - at `\$\.segments\[0\]"),
        (pushed(*[{}] * 5000), r"\$\.segments"),
        (pushed({"count": 0}), r"\$\.segments\[0\]\[6\]"),
        (pushed({"nbytes": 5}), r"4 bytes came, nbytes of Push\.segments adds up to 5"),
        (pushed({"nbytes": 2**63 - 1}), r"nbytes of Push\.segments adds up to 9223372036854775807"),
        (pushed(segments=[]), r"\$\.segments"),
        (asked(1, 0, False, 0, False, []), r"length >= 1 - at `\$\.asks\[0\]\[5\]"),
        (asked(1, 0, False, 3, False, [[0, 0, 1, 0]]), r"enum value 3 - at `\$\.asks\[0\]\[3\]"),
    ],
)
def test_what_is_no_message_is_refused_by_part_and_field(parts: list[bytes], told: str) -> None:
    with pytest.raises(ProtocolError, match=told):
        decode_request(parts)


@pytest.mark.parametrize(
    ("at", "payload", "told"),
    [
        ([(64, 12)], b"abcdefghijkl", "payload: Values has it in shared memory, 12 bytes came"),
        ([(64, 8), (0, 3)], None, "payload: 11 bytes came, nbytes of Values.segments adds up to 12"),
        ([], None, "payload: Values has one, none came"),
        ([(64, 0)], None, "at"),
    ],
)
def test_a_payload_is_either_in_the_message_or_in_shared_memory(
    at: list[tuple[int, int]], payload: bytes | None, told: str
) -> None:
    values = m.Values(8, [(11, 0, 0, 1, False, 0, 3, 12)], at)
    with pytest.raises(ProtocolError, match=told):
        decode_reply(encode(values, payload))


def test_parts_that_the_senders_memory_has_not_are_refused_by_name() -> None:
    memory = np.arange(100, dtype=np.uint8)
    push = m.Push(1, [(m.PayloadKind.GRADIENT, 0, 0, 0, 0, 0, 1, 12)], [(96, 4), (0, 8)])
    assert b"".join(buffers_at(push, memory)) == bytes([96, 97, 98, 99, *range(8)])
    with pytest.raises(ProtocolError, match=r"Push\.at: bytes 96 to 101 of memory that has 100"):
        buffers_at(msgspec.structs.replace(push, at=[(96, 5), (0, 7)]), memory)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6), st.lists(st.integers(1, 9), max_size=20))
def test_runs_have_their_bytes_however_the_payload_is_parted(sizes: list[int], cuts: list[int]) -> None:
    whole = bytes(range(sum(sizes)))
    parts, begin = [], 0
    for cut in cuts:
        parts.append(memoryview(whole[begin : begin + cut]))
        begin += cut
    parts = [part for part in [*parts, memoryview(whole[begin:])] if part.nbytes] or [memoryview(b"")]
    push = m.Push(1, [(m.PayloadKind.GRADIENT, 0, 0, 0, 0, number, 1, size) for number, size in enumerate(sizes)])
    segments = push_segments(push, parts)
    assert [bytes(segment.payload) for segment in segments] == [
        whole[end - n : end] for n, end in zip(sizes, accumulate(sizes), strict=True)
    ]
    assert all(segment.copied().payload.readonly is False for segment in segments)


@settings(max_examples=500)
@given(st.lists(st.binary(max_size=200), max_size=3), st.booleans())
def test_random_bytes_raise_nothing_but_protocol_error(parts: list[bytes], prefixed: bool) -> None:
    if prefixed and parts:
        parts[0] = PREFIX + parts[0]
    for decode in (decode_request, decode_reply):
        with contextlib.suppress(ProtocolError):
            decode(parts)


@settings(max_examples=500)
@given(st.sampled_from(sorted(ALL)), st.data())
def test_damaged_messages_raise_nothing_but_protocol_error(name: str, data: st.DataObject) -> None:
    message, payload = ALL[name]
    header = bytearray(encode(message)[0])
    for _ in range(data.draw(st.integers(1, 4))):
        header[data.draw(st.integers(0, len(header) - 1))] = data.draw(st.integers(0, 255))
    del header[data.draw(st.integers(0, len(header))) :]
    parts = [bytes(header)] if payload is None else [bytes(header), payload]
    for decode in (decode_request, decode_reply):
        with contextlib.suppress(ProtocolError):
            decode(parts)
