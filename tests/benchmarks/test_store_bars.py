"""What the store is held to: every bar is of a case that a benchmark has, and rows are judged as they say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import bars
import busy_interpreter
import growable
from bars import BARS, Bar, verdicts
from groups import BARE
from priority import DIST_SYNC, P3, PEER_ENVIRONMENTS, slow_cases
from scaling import PEER, PREDICTED
from store_cases import many_keys, one_key, sparse


def row(case: str, peer: str | None = "MXNet 1.9.1, OMP 1", **fields: Any) -> dict[str, Any]:
    return {"case": case, "peer_name": peer, "weft_ms": 1.0, "ratio": 0.1, **fields}


def bar_of(case: str, figure: str) -> Bar:
    (found,) = [bar for bar in BARS if (bar.case, bar.figure.name) == (case, figure)]
    return found


def write(path: Path, *rows: dict[str, Any], **conditions: Any) -> str:
    path.write_text(json.dumps({"conditions": conditions, "rows": rows}))
    return str(path)


def test_every_bar_is_of_a_case_and_a_peer_that_a_benchmark_has() -> None:
    cases = {case.name for case in (*many_keys(), *one_key(), *sparse())}
    slow = {name for each in slow_cases() for name in each.rows}
    predicted = {f"resnet50-{shards}s{workers}w-tcp" for workers, shards in PREDICTED}
    for bar in BARS:
        if bar.peer in {"MXNet", BARE}:
            assert bar.case in cases
        elif bar.peer == PEER:
            assert bar.case in predicted
        else:
            assert bar.case in slow | {*growable.CASES, growable.MEMORY, busy_interpreter.CASE.name}
            assert bar.peer in {"", *PEER_ENVIRONMENTS}
    assert len(set(BARS)) == len(BARS)
    assert bar_of("grow-rows", "rows/s").limit == growable.BAR_ROWS
    assert bar_of("grow-memory", "x values").limit == growable.BAR_MEMORY


def test_the_first_and_the_last_layer_have_bars_at_every_speed_and_manner() -> None:
    for rate in ("1gbit", "100mbit"):
        for manner in ("burst", "stagger"):
            for shaped in ("", "-proxy"):
                first = {bar.peer for bar in BARS if bar.case == f"{rate}-{manner}-first{shaped}"}
                assert first == ({DIST_SYNC, P3} if shaped else {DIST_SYNC, P3, ""})
                assert [bar.limit for bar in BARS if bar.case == f"{rate}-{manner}-last{shaped}"] == [1.05]
    assert bar_of("1gbit-burst-first", "ms").limit == 6
    assert bar_of("100mbit-stagger-first", "x P3").limit == 0.3


def test_the_bare_exchange_of_the_same_run_is_told_beside_what_was_measured() -> None:
    rows = [
        row("key-1MiB", weft_ms=2.0, peer_ms=4.0, ratio=0.5),
        row("key-1MiB", BARE, weft_ms=2.0, peer_ms=1.6, ratio=1.25),
        row("key-4KiB"),
        row("calls-4KiB-1s1w", weft_ms=5.12),
        row("calls-4KiB-1s1w", BARE, weft_ms=5.12, peer_ms=2.56, ratio=2.0),
    ]
    found = {(one.bar.case, one.bar.figure.name): one for one in verdicts(rows, BARS)}
    key, flight = found["key-1MiB", "x MXNet"], found["calls-4KiB-1s1w", "us a key"]
    assert (key.measured, key.bare) == (0.5, pytest.approx(1.6 / 4.0))
    assert (flight.measured, flight.bare) == (pytest.approx(20.0), pytest.approx(10.0))
    assert (found["key-1MiB", "x bare"].measured, found["key-1MiB", "x bare"].met) == (1.25, True)
    assert found["key-4KiB", "x MXNet"].bare is None
    assert found["key-16MiB", "x MXNet"].bare is None


@pytest.mark.parametrize(
    ("case", "figure", "fields", "met"),
    [
        ("key-4KiB", "x MXNet", {"ratio": 0.8}, True),
        ("key-4KiB", "x MXNet", {"ratio": 0.801}, False),
        ("key-4KiB", "x MXNet", {"ratio": None}, None),
        ("calls-4KiB-1s1w", "us a key", {"weft_ms": 60 * 0.256}, True),
        ("calls-4KiB-1s1w", "us a key", {"weft_ms": 61 * 0.256}, False),
        ("grow-rows", "rows/s", {"peer_name": None, "ratio": None, "rows_per_s": 5_000_001}, True),
        ("grow-rows", "rows/s", {"peer_name": None, "ratio": None, "rows_per_s": 4_999_999}, False),
        ("grow-memory", "x values", {"peer_name": None, "ratio": None, "memory_ratio": 1.31}, False),
        ("resnet50-2s2w-tcp", "off by", {"peer_name": PEER, "ratio": 1 / 1.19}, True),
        ("resnet50-2s2w-tcp", "off by", {"peer_name": PEER, "ratio": 1 / 0.79}, False),
    ],
)
def test_a_figure_is_judged_by_its_limit(case: str, figure: str, fields: dict[str, Any], met: bool | None) -> None:
    (found,) = verdicts([{**row(case), **fields}], [bar_of(case, figure)])
    assert found.met is met


def test_rows_of_other_peers_and_cases_do_not_count_and_the_last_of_several_does() -> None:
    bar = bar_of("1gbit-burst-first", "x P3")
    rows = [row("1gbit-burst-first", P3, ratio=0.9), row("1gbit-burst-first", "weft-fifo", ratio=2.0)]
    assert verdicts(rows, [bar])[0].measured == 0.9
    assert verdicts([*rows, row("1gbit-burst-first", P3, ratio=1.2)], [bar])[0].met is False
    assert verdicts([row("1gbit-burst-first-rows", P3)], [bar])[0].met is None
    assert verdicts([row("resnet50-2s2w-tcp", PEER)], [bar_of("resnet50-2s2w-tcp", "x MXNet")])[0].met is None


def test_the_exit_code_tells_of_what_is_missed_and_of_what_was_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bars, "BARS", [bar_of("key-4KiB", "x MXNet"), bar_of("key-1MiB", "x MXNet")])
    good = write(tmp_path / "a.json", row("key-4KiB"), row("key-1MiB"), load_before=0.1, load_after=0.2)
    bad = write(tmp_path / "b.json", row("key-1MiB", ratio=0.6), load_before=0.1, load_after=0.2, quick=True)
    assert bars.run([good]) == bars.MET
    assert bars.run([bad]) == bars.MISSED
    assert bars.run([write(tmp_path / "c.txt", row("key-1MiB"))]) == bars.UNMEASURED
    capsys.readouterr()
    assert bars.run([str(tmp_path)]) == bars.MISSED  # b.json comes last
    shown = capsys.readouterr().out
    assert "1 met, 1 not met, 0 not measured" in shown
    assert "b.json: load 0.1 before, load 0.2 after; a quick run" in shown


@pytest.mark.parametrize("text", ["[]", "{}", "no json", '{"rows": 3, "conditions": {}}'])
def test_what_no_benchmark_wrote_is_refused_by_name(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    assert bars.run([str(path)]) == bars.MISSED
    assert "failed" in capsys.readouterr().out
    assert bars.run([str(tmp_path / "none.json")]) == bars.MISSED


def test_the_table_is_whole_on_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    fields = {"rows_per_s": 12_345_678.0, "memory_ratio": 1.234, "weft_ms": 17_000.0}
    rows = [row(bar.case, bar.peer, **fields) for bar in BARS if bar.peer != BARE]
    Console(width=80).print(bars.bar_table(verdicts(rows, BARS)))
    shown = capsys.readouterr().out
    assert "…" not in shown
    for text in (
        "100mbit-stagger-first-proxy",
        "x dist_sync",
        "12,345,678",
        ">= 5,000,000",
        "<= 0.8",
        "17,000.00",
        "no",
    ):
        assert text in shown
