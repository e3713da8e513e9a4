"""The life of a client's connection, row by row of its table, by hand and by a clock that is a number."""

from __future__ import annotations

import pytest

from store_cluster import key_of, store_of
from weft_kvstore.client.core import ClientCore
from weft_kvstore.client.link import (
    AFTER_LOSS,
    FIRST_RETRY_S,
    HELLOS,
    LAST_RETRY_S,
    ClientLink,
    LinkState,
    SlotTakenError,
)
from weft_kvstore.errors import StoreError, StoreLostError, StoreRefusedError
from weft_kvstore.settings import LinkSettings
from weft_kvstore.sharding import routing_of
from weft_kvstore.wire.codec import ProtocolError, encode
from weft_kvstore.wire.messages import Acknowledge, Hello, RefusalCode, Refused, Welcome

SILENCE_S = 8.0
BOOT = b"b" * 16
CONNECT, KEEPALIVE, LOST = "connect", "keep alive", "lost"
NOTHING: set[str] = set()
BROKEN_OFF = StoreLostError("shard 3: broken off")


def link_to(settings: LinkSettings, now: float = 0.0) -> ClientLink:
    link = ClientLink(3, "x", Hello("job", 1, 0, 1, bytes(16), 0, bytes(32)), settings, now)
    link.name = "shard 3"
    return link


def due(link: ClientLink, now: float) -> set[str]:
    """What a tick does: it begins a connection, says the Hello again or a Ping, or finds the shard lost."""
    session, lost = link.session, link.lost
    link.outgoing.clear()
    link.tick(now)
    found = {LOST} if link.lost is not lost else set()
    has_begun = link.session > session
    found |= {CONNECT} if has_begun else set()
    return found | ({KEEPALIVE} if len(link.outgoing) > has_begun else set())


def handshake() -> ClientLink:
    """At 0 s it has begun."""
    connection = link_to(LinkSettings(silence_s=SILENCE_S))
    assert due(connection, 0.0) == {CONNECT}
    return connection


def opened() -> ClientLink:
    connection = handshake()
    connection.on_handshake(welcome(1), 0.0)
    assert connection.state is LinkState.OPEN
    return connection


def welcome(session: int, boot: bytes = BOOT) -> Welcome:
    return Welcome(session, boot, int(SILENCE_S * 1000))


def refused(code: RefusalCode) -> Refused:
    return Refused(code, "because")


def troubles(connection: ClientLink) -> tuple[LinkState, str | None, type[StoreError] | None]:
    """Its state, what is known of why it is not open, and what becomes of operations then."""
    trouble = connection.trouble
    return connection.state, None if trouble is None else str(trouble), None if trouble is None else type(trouble)


LOST_TEXT = "shard 3 has been silent for 8.0 s (it did not answer)"


def test_it_begins_down_and_is_due_at_once() -> None:
    connection = link_to(LinkSettings(), 5.0)
    assert (connection.state, connection.session, connection.next_tick()) == (LinkState.DOWN, 0, 5.0)
    assert due(connection, 5.0) == {CONNECT}
    assert (connection.state, connection.session) == (LinkState.HANDSHAKE, 1)


def test_a_welcome_opens_it() -> None:
    assert troubles(opened()) == (LinkState.OPEN, None, None)


@pytest.mark.parametrize("session", [0, 2])
def test_a_welcome_of_another_connection_changes_nothing(session: int) -> None:
    connection = handshake()
    before = troubles(connection)
    with pytest.raises(ProtocolError, match=rf"Welcome.session: {session} in handshake, this is 1"):
        connection.on_handshake(welcome(session), 0.0)
    assert troubles(connection) == before


def test_a_welcome_that_is_read_after_its_connection_broke_changes_nothing() -> None:
    connection = handshake()
    connection.disconnected(1.0)
    connection.on_handshake(welcome(1), 1.0)
    assert connection.state is LinkState.DOWN
    assert CONNECT in due(connection, connection.next_tick())
    connection.on_handshake(welcome(2), 2.0)
    assert connection.state is LinkState.OPEN


def test_a_second_welcome_is_none() -> None:
    with pytest.raises(ProtocolError, match=r"Welcome.session: 1 in open"):
        opened().on_handshake(welcome(1), 0.0)


@pytest.mark.parametrize(
    ("code", "kind"), [(RefusalCode.UNKNOWN_JOB, StoreRefusedError), (RefusalCode.BUSY, SlotTakenError)]
)
def test_a_refusal_that_may_pass_is_tried_again_before_the_first_welcome(
    code: RefusalCode, kind: type[StoreError]
) -> None:
    connection = handshake()
    connection.on_handshake(refused(code), 1.0)
    assert troubles(connection) == (LinkState.DOWN, "shard 3: because", kind)
    assert connection.next_tick() == 1.0 + FIRST_RETRY_S
    assert due(connection, connection.next_tick()) == {CONNECT}
    connection.on_handshake(welcome(2), 1.1)
    assert troubles(connection) == (LinkState.OPEN, None, None)


def test_why_a_shard_turned_us_away_is_told_at_once_and_until_it_says_otherwise() -> None:
    connection = handshake()
    connection.on_handshake(refused(RefusalCode.BUSY), 1.0)
    assert troubles(connection) == (LinkState.DOWN, "shard 3: because", SlotTakenError)
    assert LOST in due(connection, SILENCE_S)
    assert troubles(connection) == (LinkState.HANDSHAKE, "shard 3: because", SlotTakenError)
    connection.on_handshake(refused(RefusalCode.UNKNOWN_JOB), SILENCE_S)
    assert troubles(connection) == (LinkState.DOWN, "shard 3: because", StoreRefusedError)
    due(connection, SILENCE_S + 1.0)
    connection.disconnected(SILENCE_S + 1.0)  # Whatever was there is gone.
    assert troubles(connection) == (LinkState.DOWN, LOST_TEXT, StoreLostError)
    due(connection, SILENCE_S + 2.0)
    connection.on_handshake(refused(RefusalCode.BUSY), SILENCE_S + 2.0)
    due(connection, SILENCE_S + 3.0)
    connection.on_handshake(welcome(connection.session), SILENCE_S + 3.0)
    assert troubles(connection) == (LinkState.OPEN, None, None)


def test_that_the_slot_is_taken_does_not_pass_after_the_first_welcome() -> None:
    connection = opened()
    connection.on_handshake(refused(RefusalCode.BUSY), 1.0)
    assert troubles(connection) == (LinkState.REFUSED, "shard 3: because", StoreRefusedError)


def test_a_shard_that_was_started_anew_and_has_not_opened_the_job_yet_is_tried_again_and_says_what_it_is() -> None:
    connection = opened()
    connection.disconnected(1.0)
    now = 1.0 + FIRST_RETRY_S
    assert due(connection, now) == {CONNECT}
    connection.on_handshake(refused(RefusalCode.UNKNOWN_JOB), now)
    assert troubles(connection) == (LinkState.DOWN, "shard 3: because", StoreLostError)
    now = connection.next_tick()
    assert due(connection, now) == {CONNECT}
    connection.on_handshake(welcome(connection.session, b"c" * 16), now)
    assert connection.state is LinkState.REFUSED
    assert "has started anew and has lost its values" in str(connection.trouble)


FINAL = {*RefusalCode} - {RefusalCode.UNKNOWN_JOB, RefusalCode.BUSY, RefusalCode.UNKNOWN_LINK}


@pytest.mark.parametrize("code", sorted(FINAL))
def test_any_other_refusal_is_for_good_and_nothing_is_due_ever_after(code: RefusalCode) -> None:
    connection = handshake()
    connection.on_handshake(refused(code), 1.0)
    kind = StoreLostError if code is RefusalCode.CLOSED else StoreRefusedError
    assert troubles(connection) == (LinkState.REFUSED, "shard 3: because", kind)
    connection.disconnected(2.0)
    connection.disconnected(2.0, BROKEN_OFF)
    assert troubles(connection) == (LinkState.REFUSED, "shard 3: because", kind)
    assert (connection.next_tick(), due(connection, 1e9)) == (float("inf"), NOTHING)


def test_a_shard_that_knows_no_hello_gets_one_on_a_new_connection() -> None:
    connection = opened()
    connection.on_handshake(refused(RefusalCode.UNKNOWN_LINK), 1.0)
    assert troubles(connection) == (LinkState.DOWN, None, None)
    assert due(connection, 1.0 + FIRST_RETRY_S) == {CONNECT}
    assert connection.session == 2


def test_the_time_to_try_again_doubles_up_to_a_bound_and_a_welcome_begins_it_anew() -> None:
    connection, now, waits = handshake(), 0.0, []
    for _ in range(7):
        connection.disconnected(now)
        waits.append(connection.next_tick() - now)
        now = connection.next_tick()
        assert CONNECT in due(connection, now)
    assert waits == pytest.approx([0.02, 0.04, 0.08, 0.16, 0.32, LAST_RETRY_S, LAST_RETRY_S])
    connection.on_handshake(welcome(8), now)
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
    connection = link_to(LinkSettings(silence_s=silence_s))
    due(connection, 0.0)
    connection.on_handshake(welcome(1), 0.0)
    connection.heard = 1.0
    assert CONNECT not in due(connection, 1.0 + renewed_after_s - 0.01)
    assert due(connection, 1.0 + renewed_after_s) == {CONNECT}
    assert (connection.state, connection.session, connection.lost) == (LinkState.HANDSHAKE, 2, None)


def test_a_process_that_stood_still_does_not_blame_the_shard() -> None:
    connection = opened()
    connection.after_stall(100.0, 100.0)
    assert due(connection, 100.0) & {LOST, CONNECT} == NOTHING
    connection.heard = 100.0
    connection.after_stall(2.0, 101.0)
    assert LOST not in due(connection, 100.0 + SILENCE_S)
    assert LOST in due(connection, 101.0 + SILENCE_S)


def test_a_hello_is_said_again_until_it_is_answered() -> None:
    connection = handshake()
    again_s = SILENCE_S / HELLOS
    assert connection.next_tick() == pytest.approx(again_s)
    assert [due(connection, at * again_s) for at in (0.5, 1.0, 1.5, 2.0)] == [
        NOTHING,
        {KEEPALIVE},
        NOTHING,
        {KEEPALIVE},
    ]
    connection.on_handshake(welcome(1), 2 * again_s)
    assert KEEPALIVE not in due(connection, 4 * again_s)


def test_the_silence_since_it_was_open_loses_the_shard_once_until_a_welcome() -> None:
    connection = opened()
    connection.disconnected(1.0)
    assert due(connection, SILENCE_S) == {CONNECT, LOST}
    assert troubles(connection) == (LinkState.HANDSHAKE, LOST_TEXT, StoreLostError)
    assert LOST not in due(connection, 2 * SILENCE_S)
    connection.on_handshake(welcome(connection.session), 2 * SILENCE_S)
    assert troubles(connection) == (LinkState.OPEN, None, None)
    assert connection.lost is None


@pytest.mark.parametrize("is_open", [True, False])
def test_only_what_is_heard_while_it_is_open_breaks_the_silence(is_open: bool) -> None:
    description, settings = store_of([key_of("w", (4,), 1)], slots=1, shards=1), LinkSettings(silence_s=SILENCE_S)
    core = ClientCore(
        description, routing_of(description), 0, 1, bytes(16), settings=settings, endpoints=["a"], now=0.0
    )
    connection = core.links[0]
    due(connection, 0.0)
    if is_open:
        connection.on_handshake(welcome(1), 0.0)
    core.receive(0, encode(Acknowledge([])), SILENCE_S - 0.1)
    assert (LOST in due(connection, SILENCE_S)) is not is_open


def test_another_boot_is_a_shard_that_has_lost_its_values() -> None:
    connection = opened()
    connection.disconnected(1.0)
    due(connection, 1.0 + FIRST_RETRY_S)
    connection.on_handshake(welcome(2, b"c" * 16), 1.1)
    text = f"shard 3 has started anew and has lost its values; {AFTER_LOSS}"
    assert troubles(connection) == (LinkState.REFUSED, text, StoreLostError)


def test_it_pings_as_often_as_the_shard_needs() -> None:
    connection = handshake()
    connection.on_handshake(Welcome(1, BOOT, 2000), 0.0)
    assert connection.next_tick() == 0.5
    assert (due(connection, 0.49), due(connection, 0.5), due(connection, 0.6)) == (NOTHING, {KEEPALIVE}, NOTHING)


def test_keys_that_do_not_fit_are_refused_at_once_and_for_good() -> None:
    connection = handshake()
    connection.refuse(StoreRefusedError("shard 3: no such key"))
    assert troubles(connection) == (LinkState.REFUSED, "shard 3: no such key", StoreRefusedError)
    assert (connection.next_tick(), due(connection, 1e9)) == (float("inf"), NOTHING)


def again(connection: ClientLink) -> float:
    """When it has begun once more."""
    while CONNECT not in due(connection, now := connection.next_tick()):
        pass
    return now


@pytest.mark.parametrize("is_read_first", [True, False])
def test_a_handshake_that_breaks_off_is_tried_again_and_says_why_until_a_connection_ends_without_a_word(
    is_read_first: bool,
) -> None:
    """The end of the connection may be read before the word that it was in its handshake."""
    connection, now = handshake(), 0.0
    for _ in range(3):
        if is_read_first:
            connection.disconnected(now)
        connection.disconnected(now, BROKEN_OFF)
        assert troubles(connection) == (LinkState.DOWN, "shard 3: broken off", StoreLostError)
        now = again(connection)
    connection.disconnected(now)
    assert connection.trouble is None
    now = again(connection)
    connection.disconnected(now, BROKEN_OFF)
    now = again(connection)
    connection.on_handshake(welcome(connection.session), now)
    assert troubles(connection) == (LinkState.OPEN, None, None)


def test_a_link_that_was_open_is_shut_out_when_its_key_was_taken_away() -> None:
    connection = opened()
    connection.disconnected(1.0)
    due(connection, connection.next_tick())
    connection.refuse(StoreRefusedError("shard 3: no such key"))
    assert troubles(connection) == (LinkState.REFUSED, "shard 3: no such key", StoreRefusedError)
