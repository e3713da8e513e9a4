"""The benchmark of priorities: its pacing, its proxy, its marks and rows. No rate is timed but the proxy's bound."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import priority
from benchmark import DONE, FAILED, PEER_MISSING, PYTHON_VARIABLE, Plan
from exchange import MARKS, Array, Drawer, Work, mark_places, one_step
from groups import SideError
from paced_proxy import PacedProxy, Pacer, ProxiedLink, Route, link_from_json
from priority import DIST_SYNC, FIFO, P3, SlowCase, slow_cases
from reporting import PeerRounds, Round, link_table, row_of
from slow_link import NetworkError, ShapedNetwork, Shaping
from store_cases import Case, resnet50_shapes
from weft_side import WeftLayers, portions_of

LAYERS = Case("layers", ((64,), (300, 100), (50_000,), (7, 3)), workers=1, servers=1, iterations=1, warm_up=1)


def test_bytes_leave_at_the_links_rate_however_they_are_cut() -> None:
    pacer = Pacer(1000.0, depth_bytes=0)
    assert pacer.leave(500, 10.0) == pytest.approx(10.5)
    assert pacer.leave(250, 10.1) == pytest.approx(10.75)
    assert pacer.leave(250, 10.2) == pytest.approx(11.0)
    assert pacer.leave(100, 20.0) == pytest.approx(20.1)


def test_a_link_that_was_late_catches_up_by_its_depth_and_no_more() -> None:
    pacer = Pacer(1000.0, depth_bytes=200)
    pacer.leave(1000, 0.0)
    assert pacer.leave(300, 5.0) == pytest.approx(5.1)
    assert pacer.leave(300, 5.1) == pytest.approx(5.4)


@contextmanager
def proxied(bits_per_s: float, **fields: object) -> Iterator[tuple[socket.socket, socket.socket]]:
    """A connection through a proxy: its two ends."""
    with closing(socket.create_server(("127.0.0.1", 0))) as target, closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        listen = free.getsockname()
        free.close()
        route = Route(listen, target.getsockname(), **fields)  # type: ignore[arg-type]
        proxy = PacedProxy(link_from_json(ProxiedLink(bits_per_s, (route,)).to_json()))
        with closing(proxy), closing(socket.create_connection(listen)) as near, closing(target.accept()[0]) as far:
            near.settimeout(10)
            far.settimeout(10)
            yield near, far


def received(end: socket.socket, count: int) -> bytes:
    found = bytearray()
    while len(found) < count:
        part = end.recv(1 << 16)
        assert part
        found += part
    return bytes(found)


def test_what_passes_the_proxy_is_whole_and_no_faster_than_the_link() -> None:
    sent = np.random.default_rng(1).bytes(500_000)
    with proxied(20e6) as (near, far):
        start = time.monotonic()
        threading.Thread(target=near.sendall, args=(sent,), daemon=True).start()
        threading.Thread(target=far.sendall, args=(sent[::-1],), daemon=True).start()
        assert received(far, len(sent)) == sent
        assert received(near, len(sent)) == sent[::-1]
        assert time.monotonic() - start >= (500_000 - Pacer(1.0).depth_bytes) * 8 / 20e6


def test_the_proxy_leaves_what_cannot_pass_with_its_sender() -> None:
    with proxied(8e3) as (near, far):
        far.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        near.settimeout(0.3)
        taken = 0
        with contextlib.suppress(TimeoutError):
            while taken < 1 << 22:
                taken += near.send(bytes(4096))
        assert taken < 400_000


def test_the_proxy_puts_one_text_in_the_place_of_another_on_the_way_to_the_target() -> None:
    with proxied(1e9, replace=(("127.0.0.2", "127.0.0.4"),)) as (near, far):
        near.sendall(b"at 127.0.0.2!")
        assert received(far, 13) == b"at 127.0.0.4!"
        far.sendall(b"at 127.0.0.2!")
        assert received(near, 13) == b"at 127.0.0.2!"


def test_the_end_of_one_side_is_the_end_of_the_other() -> None:
    with proxied(1e9) as (near, far):
        near.shutdown(socket.SHUT_RDWR)
        assert far.recv(1) == b""


class Recorded:
    """An exchange that notes what it is asked."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[int, ...]]] = []

    def prepare(self, work: Work) -> None: ...
    def hand_over(self, places: Sequence[int]) -> None:
        self.calls.append(("hand over", tuple(places)))

    def ask(self) -> None:
        self.calls.append(("ask", ()))

    def wait(self, place: int) -> None:
        self.calls.append(("wait", (place,)))

    def pulled(self) -> list[Array]:
        return []

    def expected(self, before: Array, gradient: Array) -> Array:
        return before

    def wire_bytes(self) -> None: ...
    def close(self) -> None: ...


@pytest.mark.parametrize("stagger_s", [0.0, 0.004])
def test_the_last_layer_is_handed_over_first_and_the_first_waited_for_first(stagger_s: float) -> None:
    """In a burst all at once; where they are staggered one by one, as they come."""
    exchange = Recorded()
    marks = one_step(exchange, replace(LAYERS, stagger_s=stagger_s))
    alone = [("hand over", (place,)) for place in (3, 2, 1, 0)]
    handed = alone if stagger_s else [("hand over", (3, 2, 1, 0))]
    assert exchange.calls == [*handed, ("ask", ()), *(("wait", (place,)) for place in range(4))]
    assert list(marks) == list(MARKS)
    assert list(marks.values()) == sorted(marks.values())


def test_marks_of_resnet_50_are_at_the_first_layer_the_quarters_and_the_last() -> None:
    assert mark_places(161) == {"first": 0, "quarter": 40, "half": 80, "last": 160}


def test_every_case_has_a_row_for_the_first_and_the_last_layer_over_both_kinds_of_link() -> None:
    rows = {row for slow in slow_cases() for row in slow.rows}
    assert len(rows) == 2 * 2 * 2 * len(MARKS)
    assert all(slow.case.shapes == resnet50_shapes() for slow in slow_cases())
    for rate in ("1gbit", "100mbit"):
        for manner in ("burst", "stagger"):
            for mark in ("first", "last"):
                assert {f"{rate}-{manner}-{mark}", f"{rate}-{manner}-{mark}-proxy"} <= rows


class CountedStore:
    """Notes what it is called with; what is pulled is there at once."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[str]]] = []

    def push(self, keys: Sequence[str], gradients: Sequence[Array]) -> Future[None]:
        assert [gradient.shape for gradient in gradients] == [LAYERS.shapes[int(key[3:])] for key in keys]
        self.calls.append(("push", list(keys)))
        return done(None)

    def pull(self, keys: Sequence[str], *, version: int) -> Future[list[Array]]:
        self.calls.append((f"pull {version}", list(keys)))
        return done([np.full(LAYERS.shapes[int(key[3:])], int(key[3:]), np.float32) for key in keys])


def done(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future


@pytest.mark.parametrize("stagger_s", [0.0, 0.004])
def test_weft_hands_a_burst_over_in_one_call_and_asks_once_for_each_mark(stagger_s: float) -> None:
    store, case = CountedStore(), replace(LAYERS, stagger_s=stagger_s)
    exchange = WeftLayers(store, case)  # type: ignore[arg-type]
    exchange.prepare(Drawer(case).draw(0, 0))
    one_step(exchange, case)
    keys = [f"key{place}" for place in range(4)]
    pushed = [call for call in store.calls if call[0] == "push"]
    assert pushed == ([("push", [key]) for key in reversed(keys)] if stagger_s else [("push", keys[::-1])])
    asked = [call for call in store.calls if call[0] == "pull 1"]
    assert sorted(asked) == [("pull 1", [key]) for key in keys]  # here every layer is at a mark
    assert [value.flat[0] for value in exchange.pulled()] == [0, 1, 2, 3]
    assert asked[0] == ("pull 1", [keys[-1 if stagger_s else 0]])


def test_layers_between_two_marks_are_asked_for_together() -> None:
    assert portions_of(161) == [range(1), range(1, 41), range(41, 81), range(81, 161)]
    assert portions_of(1) == [range(1)]


PROXIED = SlowCase("quick-burst", LAYERS, 400e6, Shaping.PROXY)


def test_without_a_peer_real_processes_run_through_the_proxy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The sides compare their values with NumPy themselves."""
    monkeypatch.delenv(PYTHON_VARIABLE, raising=False)
    monkeypatch.setattr(priority, "slow_cases", lambda: (PROXIED,))
    path = tmp_path / "rows.json"
    assert priority.run(["--rounds", "1", "--json", str(path)]) == PEER_MISSING
    rows = json.loads(path.read_text())["rows"]
    names = {(row["case"], row["peer_name"]) for row in rows}
    for mark in MARKS:
        case = f"quick-burst-{mark}-proxy"
        assert {(case, DIST_SYNC), (case, P3), (case, FIFO)} <= names
    for row in rows:
        assert (row["ratio"] is None) == (row["peer_name"] in (DIST_SYNC, P3))
        both_ways = 2 * LAYERS.payload_bytes
        assert row["wire_bytes"] > both_ways
        assert row["weft_ms"] > 0


def test_where_no_network_can_be_made_the_table_says_so_and_the_others_are_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def measured(slow: SlowCase, _plan: Plan, _progress: Callable[[str], None]) -> object:
        if slow.shaping is Shaping.TC:
            raise NetworkError("ip netns add: Operation not permitted")
        rows = [row_of(row, "proxy", [Round((0.1,), 1.0)], P3_ROUNDS) for row in slow.rows]
        return rows, {}

    monkeypatch.setattr(priority, "measure_slow", measured)
    path = tmp_path / "rows.json"
    assert (
        priority.run(["--case", "1gbit-burst-first", "--case", "1gbit-burst-first-proxy", "--json", str(path)]) == DONE
    )
    document = json.loads(path.read_text())
    assert [row["case"] for row in document["rows"]] == ["1gbit-burst-first-proxy"]
    assert document["conditions"]["left_out"] == {"1gbit-burst": "ip netns add: Operation not permitted"}
    assert "no network namespaces here" in capsys.readouterr().out


P3_ROUNDS = PeerRounds(P3, [Round((0.2,), None)])


def test_wefts_failure_ends_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> object:
        raise SideError("worker has ended")

    monkeypatch.setattr(priority, "measure_slow", fails)
    assert priority.run(["--case", "1gbit-burst-first"]) == FAILED


def test_a_network_that_cannot_be_made_says_which_command_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(NetworkError, match="ip netns add"), ShapedNetwork(1e9):
        pass


def test_the_table_of_slow_links_is_whole_on_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    own, fifo = [Round((0.0024,), 1.0)], PeerRounds(FIFO, [Round((0.565,), 1.0)])
    name = "100mbit-stagger-quarter-proxy"
    rows = [row_of(name, "proxy", own, peer) for peer in (P3_ROUNDS, NO_PEER, fifo)]
    Console(width=80).print(link_table(rows))
    shown = capsys.readouterr().out
    assert "…" not in shown
    for text in (name, "2.40", "200", "0.012", "565", "missing"):
        assert text in shown


NO_PEER = PeerRounds(DIST_SYNC, missing="not there")
