"""The parser of server-sent events, against the standard's own examples and cut anywhere."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.event_stream import MAX_LINE_BYTES, Message, SseFormatError, SseParser


def parse(*chunks: bytes, parser: SseParser | None = None) -> list[Message]:
    parser = parser or SseParser()
    return [message for chunk in chunks for message in parser.feed(chunk)]


@pytest.mark.parametrize(
    ("stream", "wanted"),
    [
        # The examples of the HTML standard, section 9.2.6.
        (b"data: YHOO\ndata: +2\ndata: 10\n\n", [("message", "YHOO\n+2\n10", "")]),
        (
            b": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\ndata:  third event\n\n",
            [("message", "first event", "1"), ("message", "second event", ""), ("message", " third event", "")],
        ),
        (b"data\n\ndata\ndata\n\ndata:", [("message", "", ""), ("message", "\n", "")]),
        (b"data:test\n\ndata: test\n\n", [("message", "test", ""), ("message", "test", "")]),
        # Further rules of the same section.
        (b"event: add\ndata: 1\n\ndata: 2\n\n", [("add", "1", ""), ("message", "2", "")]),
        (b"event: nothing\n\n", []),
        (b"id: 7\n\ndata: x\n\n", [("message", "x", "7")]),
        (b"id: a\0b\ndata: x\n\n", [("message", "x", "")]),
        (b"\xef\xbb\xbfdata: x\r\rdata: y\r\n\r\n", [("message", "x", ""), ("message", "y", "")]),
        (b"unknown: 1\nretry: 250\ndata: x\n\n", [("message", "x", "")]),
        # A line separator of Unicode ends no line.
        ("data: a\u2028b\x0bc\n\n".encode(), [("message", "a\u2028b\x0bc", "")]),
        (b"data: \xff\n\n", [("message", "\ufffd", "")]),
    ],
)
def test_streams_are_read_as_the_standard_says(stream: bytes, wanted: list[tuple[str, str, str]]) -> None:
    assert parse(stream) == [Message(*each) for each in wanted]
    assert parse(*(bytes([byte]) for byte in stream)) == [Message(*each) for each in wanted]


@given(
    st.lists(st.sampled_from(["data: é\u2028", "id: 3", "event: e", "", ": c", "data"]), max_size=12),
    st.sampled_from(["\n", "\r", "\r\n"]),
    st.lists(st.integers(0, 200), max_size=8),
)
def test_where_the_stream_is_cut_changes_nothing(lines: list[str], end: str, cuts: list[int]) -> None:
    stream = (end.join(lines) + end * 2 + "x").encode()
    places = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    chunks = [stream[a:b] for a, b in pairwise(places)]
    assert parse(*chunks) == parse(stream)


def test_retry_takes_digits_alone() -> None:
    parser = SseParser()
    parse(b"retry: 12\nretry: 1.5\nretry: -3\n", parser=parser)
    assert parser.retry_ms == 12


def test_a_line_without_an_end_is_refused_before_it_fills_the_memory() -> None:
    chunks = [b"x" * (1 << 20)] * (MAX_LINE_BYTES // (1 << 20))
    assert parse(*chunks) == []
    with pytest.raises(SseFormatError):
        parse(*chunks, b"x")
