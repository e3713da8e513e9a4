"""What the settings of a link refuse, and which endpoints are no network's."""

from __future__ import annotations

import math
from typing import Any

import pytest

from weft_kvstore.settings import MAX_FRAME_BYTES, LinkSettings, check_endpoint, is_loopback


@pytest.mark.parametrize(
    "endpoint",
    [
        "tcp://127.0.0.1:7000",
        "tcp://127.8.9.1:7000",
        "tcp://localhost:1",
        "tcp://[::1]:80",
        "ipc:///run/x",
        "inproc://x",
    ],
)
def test_loopback(endpoint: str) -> None:
    assert is_loopback(endpoint)


@pytest.mark.parametrize(
    "endpoint",
    [
        "tcp://10.0.0.1:7000",
        "tcp://127.evil.example:7000",
        "tcp://localhost.example:1",
        "tcp://[fe80::1]:80",
        "tcp://",
        "",
    ],
)
def test_elsewhere(endpoint: str) -> None:
    assert not is_loopback(endpoint)


@pytest.mark.parametrize(
    "endpoint", ["tcp://h:99999", "tcp://h:0", "tcp://h", "tcp://::1:9", "tcp://a b:9", "tcp://h:9-10", "h:9", ""]
)
def test_where_no_shard_can_be_is_refused(endpoint: str) -> None:
    with pytest.raises(ValueError, match="expected tcp://HOST:PORT, with a port from 1 to 65535 and brackets"):
        check_endpoint(endpoint, least_port=1)


@pytest.mark.parametrize(
    "endpoint", ["tcp://h:1", "tcp://[::1]:65535", "tcp://10.0.0.2:0;shard-0:5555", "ipc:///run/x"]
)
def test_where_a_shard_may_be_is_not(endpoint: str) -> None:
    check_endpoint(endpoint, least_port=1)


@pytest.mark.parametrize("name", ["credit_bytes", "frame_bytes", "request_timeout_s", "ping_interval_s", "silence_s"])
@pytest.mark.parametrize("value", [0, -1, float("nan")])
def test_what_is_not_above_zero_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{name} must be above 0"):
        LinkSettings(**{name: value})


@pytest.mark.parametrize("name", ["request_timeout_s", "ping_interval_s", "silence_s"])
@pytest.mark.parametrize("value", [math.inf, 1e10])
def test_a_time_that_cannot_be_counted_in_milliseconds_is_refused(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=rf"{name} must be at most 1e\+09"):
        LinkSettings(**{name: value})


def test_a_frame_that_no_peer_would_take_is_refused() -> None:
    assert LinkSettings(frame_bytes=MAX_FRAME_BYTES).frame_bytes == MAX_FRAME_BYTES
    with pytest.raises(ValueError, match="frame_bytes must be at most"):
        LinkSettings(frame_bytes=MAX_FRAME_BYTES + 1)
