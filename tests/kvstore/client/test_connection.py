"""The life of a client's connection, row by row of its table, by hand and by a clock that is a number."""

from __future__ import annotations

import pytest

from store_cluster import key_of, store_of
from weft_kvstore.client.connection import (
    AFTER_LOSS,
    FIRST_RETRY_S,
    HANDSHAKES,
    HELLOS,
    LAST_RETRY_S,
    Connection,
    Due,
    HandshakeFailure,
    LinkState,
)
from weft_kvstore.client.core import ClientCore, Sender
from weft_kvstore.settings import LinkSettings
from weft_kvstore.wire.codec import ProtocolError, encode
from weft_kvstore.wire.messages import Acknowledge, RefusalCode, Refused, Welcome

SILENCE_S = 8.0
BOOT = b"b" * 16
NOTHING = Due(0)


def handshake() -> Connection:
    """At 0 s it has begun."""
    connection = Connection("shard 3", LinkSettings(silence_s=SILENCE_S), 0.0)
    assert connection.tick(0.0) == Due.CONNECT
    return connection


def opened() -> Connection:
    connection = handshake()
    assert connection.welcome(welcome(1), 0.0)
    return connection


def welcome(session: int, boot: bytes = BOOT) -> Welcome:
    return Welcome(session, boot, int(SILENCE_S * 1000))


def refused(code: RefusalCode) -> Refused:
    return Refused(code, "because")


def states(connection: Connection) -> tuple[LinkState, str | None, str | None, bool]:
    return connection.state, connection.lost, connection.refused, connection.at_fault


def test_it_begins_down_and_is_due_at_once() -> None:
    connection = Connection("shard 3", LinkSettings(), 5.0)
    assert (connection.state, connection.session, connection.next_tick()) == (LinkState.DOWN, 0, 5.0)
    assert connection.tick(5.0) == Due.CONNECT
    assert (connection.state, connection.session) == (LinkState.GREETING, 1)


def test_a_welcome_opens_it() -> None:
    assert states(opened()) == (LinkState.OPEN, None, None, False)


@pytest.mark.parametrize("session", [0, 2])
def test_a_welcome_of_another_connection_changes_nothing(session: int) -> None:
    connection = handshake()
    before = states(connection)
    with pytest.raises(ProtocolError, match=rf"Welcome.session: {session} in greeting, this is 1"):
        connection.welcome(welcome(session), 0.0)
    assert states(connection) == before


def test_a_welcome_that_is_read_after_its_connection_broke_changes_nothing() -> None:
    connection = handshake()
    connection.disconnected(1.0)
    assert not connection.welcome(welcome(1), 1.0)
    assert (connection.state, connection.refused) == (LinkState.DOWN, None)
    assert Due.CONNECT in connection.tick(connection.next_tick())
    assert connection.welcome(welcome(2), 2.0)


def test_a_second_welcome_is_none() -> None:
    with pytest.raises(ProtocolError, match=r"Welcome.session: 1 in open"):
        opened().welcome(welcome(1), 0.0)


@pytest.mark.parametrize("code", [RefusalCode.UNKNOWN_JOB, RefusalCode.BUSY])
def test_a_refusal_that_may_pass_is_tried_again_before_the_first_welcome(code: RefusalCode) -> None:
    connection = handshake()
    connection.turn_away(refused(code), 1.0)
    assert states(connection) == (LinkState.DOWN, None, None, True)
    assert connection.next_tick() == 1.0 + FIRST_RETRY_S
    assert connection.tick(connection.next_tick()) == Due.CONNECT
    assert connection.welcome(welcome(2), 1.1)
    assert states(connection) == (LinkState.OPEN, None, None, False)


def test_why_a_shard_turned_us_away_is_told_at_once_and_until_it_says_otherwise() -> None:
    connection = handshake()
    connection.turn_away(refused(RefusalCode.BUSY), 1.0)
    assert (connection.trouble, connection.is_taken) == ("shard 3: because", True)
    assert Due.LOST in connection.tick(SILENCE_S)
    assert (connection.trouble, connection.is_taken) == ("shard 3: because", True)
    connection.turn_away(refused(RefusalCode.UNKNOWN_JOB), SILENCE_S)
    assert (connection.trouble, connection.is_taken) == ("shard 3: because", False)
    connection.tick(SILENCE_S + 1.0)
    connection.disconnected(SILENCE_S + 1.0)  # Whatever was there is gone.
    assert (connection.trouble, connection.at_fault) == (connection.lost, False)
    connection.tick(SILENCE_S + 2.0)
    connection.turn_away(refused(RefusalCode.BUSY), SILENCE_S + 2.0)
    connection.tick(SILENCE_S + 3.0)
    assert connection.welcome(welcome(connection.session), SILENCE_S + 3.0)
    assert (connection.trouble, connection.is_taken) == (None, False)


@pytest.mark.parametrize(("code", "at_fault"), [(RefusalCode.UNKNOWN_JOB, False), (RefusalCode.BUSY, True)])
def test_it_does_not_pass_after_the_first_welcome(code: RefusalCode, at_fault: bool) -> None:
    connection = opened()
    connection.turn_away(refused(code), 1.0)
    assert (connection.refused, connection.at_fault) == ("shard 3: because", at_fault)


FINAL = {*RefusalCode} - {RefusalCode.UNKNOWN_JOB, RefusalCode.BUSY, RefusalCode.UNKNOWN_LINK}


@pytest.mark.parametrize("code", sorted(FINAL))
def test_any_other_refusal_is_for_good_and_nothing_is_due_ever_after(code: RefusalCode) -> None:
    connection = handshake()
    connection.turn_away(refused(code), 1.0)
    assert (connection.refused, connection.at_fault) == ("shard 3: because", code is not RefusalCode.CLOSED)
    assert (connection.next_tick(), connection.tick(1e9)) == (float("inf"), NOTHING)


def test_a_shard_that_knows_no_hello_gets_one_on_a_new_connection() -> None:
    connection = opened()
    connection.turn_away(refused(RefusalCode.UNKNOWN_LINK), 1.0)
    assert states(connection) == (LinkState.DOWN, None, None, False)
    assert connection.tick(1.0 + FIRST_RETRY_S) == Due.CONNECT
    assert connection.session == 2


def test_the_time_to_try_again_doubles_up_to_a_bound_and_a_welcome_begins_it_anew() -> None:
    connection, now, waits = handshake(), 0.0, []
    for _ in range(7):
        connection.disconnected(now)
        waits.append(connection.next_tick() - now)
        now = connection.next_tick()
        assert Due.CONNECT in connection.tick(now)
    assert waits == pytest.approx([0.02, 0.04, 0.08, 0.16, 0.32, LAST_RETRY_S, LAST_RETRY_S])
    connection.welcome(welcome(8), now)
    connection.disconnected(now)
    assert connection.next_tick() - now == pytest.approx(FIRST_RETRY_S)


def test_what_is_down_cannot_break_again() -> None:
    connection = handshake()
    connection.disconnected(1.0)
    due = connection.next_tick()
    connection.disconnected(1.01)
    assert connection.next_tick() == due


@pytest.mark.parametrize(("silence_s", "renewed_after_s"), [(60.0, 2.5), (2.0, 1.0)])
def test_seconds_without_a_word_begin_a_new_connection_long_before_the_shard_is_lost(
    silence_s: float, renewed_after_s: float
) -> None:
    connection = Connection("shard 3", LinkSettings(silence_s=silence_s), 0.0)
    connection.tick(0.0)
    connection.welcome(welcome(1), 0.0)
    connection.heard = 1.0
    assert Due.CONNECT not in connection.tick(1.0 + renewed_after_s - 0.01)
    assert connection.tick(1.0 + renewed_after_s) == Due.CONNECT
    assert (connection.state, connection.session, connection.lost) == (LinkState.GREETING, 2, None)


def test_a_process_that_stood_still_does_not_blame_the_shard() -> None:
    connection = opened()
    connection.after_stall(100.0)
    assert connection.tick(100.0) & (Due.LOST | Due.CONNECT) == NOTHING
    assert Due.LOST in connection.tick(100.0 + SILENCE_S)


def test_a_hello_is_said_again_until_it_is_answered() -> None:
    connection = handshake()
    again_s = SILENCE_S / HELLOS
    assert connection.next_tick() == pytest.approx(again_s)
    assert [connection.tick(at * again_s) for at in (0.5, 1.0, 1.5, 2.0)] == [NOTHING, Due.HELLO, NOTHING, Due.HELLO]
    connection.welcome(welcome(1), 2 * again_s)
    assert Due.HELLO not in connection.tick(4 * again_s)


def test_the_silence_since_it_was_open_loses_the_shard_once_until_a_welcome() -> None:
    connection = opened()
    connection.disconnected(1.0)
    assert connection.tick(SILENCE_S) == Due.CONNECT | Due.LOST
    assert connection.lost == "shard 3 has been silent for 8.0 s (it did not answer)"
    assert Due.LOST not in connection.tick(2 * SILENCE_S)
    connection.welcome(welcome(connection.session), 2 * SILENCE_S)
    assert states(connection) == (LinkState.OPEN, None, None, False)


@pytest.mark.parametrize("is_open", [True, False])
def test_only_what_is_heard_while_it_is_open_breaks_the_silence(is_open: bool) -> None:
    description, settings = store_of([key_of("w", (4,), 1)], slots=1, shards=1), LinkSettings(silence_s=SILENCE_S)
    core = ClientCore(description, Sender(0, 1, bytes(16)), settings=settings, endpoints=["a"], now=0.0)
    connection = core.links[0].connection
    connection.tick(0.0)
    if is_open:
        connection.welcome(welcome(1), 0.0)
    core.receive(0, encode(Acknowledge([])), SILENCE_S - 0.1)
    assert (Due.LOST in connection.tick(SILENCE_S)) is not is_open


def test_another_boot_is_a_shard_that_has_lost_its_values() -> None:
    connection = opened()
    connection.disconnected(1.0)
    connection.tick(1.0 + FIRST_RETRY_S)
    assert not connection.welcome(welcome(2, b"c" * 16), 1.1)
    assert connection.refused == f"shard 3 has started anew and has lost its values; {AFTER_LOSS}"
    assert connection.state is LinkState.GREETING


def test_it_pings_as_often_as_the_shard_needs() -> None:
    connection = handshake()
    connection.welcome(Welcome(1, BOOT, 2000), 0.0)
    assert connection.next_tick() == 0.5
    assert (connection.tick(0.49), connection.tick(0.5), connection.tick(0.6)) == (NOTHING, Due.PING, NOTHING)


MINE = "mine"


def shut_out(connection: Connection, how: HandshakeFailure, now: float, *, encrypted: bool = True) -> None:
    connection.shut_out(how, now, key=MINE if encrypted else None)


@pytest.mark.parametrize(
    ("how", "encrypted", "told"),
    [
        (
            HandshakeFailure.UNAUTHORIZED,
            True,
            "it does not let in a client with the CURVE key mine: no NAME.key in its directory of clients has it"
            " (who connects without curve_keys has one that no shard knows)",
        ),
        (
            HandshakeFailure.MECHANISM_MISMATCH,
            True,
            "its links are not encrypted, and the description has curve_keys for them",
        ),
        (
            HandshakeFailure.MECHANISM_MISMATCH,
            False,
            "its links are encrypted, and the description has no curve_keys for them",
        ),
    ],
)
def test_keys_that_do_not_fit_are_refused_at_once_and_for_good(
    how: HandshakeFailure, encrypted: bool, told: str
) -> None:
    connection = handshake()
    shut_out(connection, how, 1.0, encrypted=encrypted)
    assert (connection.refused, connection.at_fault) == (f"shard 3: {told}", True)
    assert (connection.next_tick(), connection.tick(1e9)) == (float("inf"), NOTHING)


def again(connection: Connection) -> float:
    """When it has begun once more."""
    while Due.CONNECT not in connection.tick(now := connection.next_tick()):
        assert connection.lost is not None
    return now


def broken_off(connection: Connection, times: int, now: float = 0.0, *, encrypted: bool = True) -> float:
    """So many handshakes in a row, each as soon as it is due: when the last one was."""
    for _ in range(times):
        assert connection.refused is None
        if connection.state is LinkState.DOWN:
            now = again(connection)
        shut_out(connection, HandshakeFailure.BROKEN_OFF, now, encrypted=encrypted)
    return now


def test_the_word_of_a_broken_handshake_counts_also_where_the_end_of_its_connection_was_read_before_it() -> None:
    connection = handshake()
    now = broken_off(connection, HANDSHAKES)
    for _ in range(3):
        now = again(connection)
        connection.disconnected(now)
        assert "another CURVE key" in (connection.trouble or "")
        shut_out(connection, HandshakeFailure.BROKEN_OFF, now)
        assert "another CURVE key" in (connection.trouble or "")
    connection.disconnected(again(connection))
    again(connection)  # Nobody said why that one broke.
    assert "another CURVE key" not in (connection.trouble or "")


def test_handshakes_that_break_off_are_tried_again_and_told_after_some_two_seconds_of_them() -> None:
    connection = handshake()
    broken_off(connection, HANDSHAKES - 1)
    assert (connection.state, connection.trouble) == (LinkState.DOWN, None)
    now = broken_off(connection, 1)
    assert 1.5 < now < 2.5
    broken_off(connection, HANDSHAKES, now)
    assert connection.trouble is not None
    assert "it may have another CURVE key than the description's curve_keys say" in connection.trouble
    assert (connection.refused, connection.at_fault) == (None, False)
    now = again(connection)
    assert connection.welcome(welcome(connection.session), now)
    assert connection.trouble is None


def test_a_welcome_begins_the_count_of_broken_handshakes_anew() -> None:
    connection = handshake()
    now = broken_off(connection, HANDSHAKES - 1)
    for _ in range(2):
        now = connection.next_tick()
        connection.tick(now)
        assert connection.welcome(welcome(connection.session), now)
        connection.disconnected(now)
        now = broken_off(connection, HANDSHAKES - 1, now)
        assert connection.trouble is None


def test_handshakes_that_break_off_are_in_a_row_only_while_nothing_else_ends_a_connection() -> None:
    """Where nobody listens, a process may be about to start: what broke off before it ended says nothing of its key."""
    connection = handshake()
    for _ in range(3):
        broken_off(connection, HANDSHAKES - 1)
        connection.disconnected(again(connection))
        assert "CURVE" not in (connection.trouble or "")


def test_a_plain_link_whose_handshakes_break_off_is_tried_for_ever() -> None:
    """Its shard has no key that could be another."""
    connection = handshake()
    broken_off(connection, 5 * HANDSHAKES, encrypted=False)
    assert (connection.state, connection.refused) == (LinkState.DOWN, None)
    assert "CURVE" not in (connection.trouble or "")


def test_a_link_that_was_open_is_shut_out_when_its_key_was_taken_away() -> None:
    connection = opened()
    connection.disconnected(1.0)
    connection.tick(connection.next_tick())
    shut_out(connection, HandshakeFailure.UNAUTHORIZED, 1.1)
    assert connection.refused is not None
    assert connection.refused.startswith("shard 3: it does not let in a client with the CURVE key mine")
    assert connection.at_fault
