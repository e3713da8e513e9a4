"""The benchmarks of the store: their statistics, what they tell and their exit codes. Nothing here is timed."""

from __future__ import annotations

import io
import json
import math
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from rich.console import Console

from acceptance_processes import descendants
from bare_shard import BLOCK_ELEMENTS
from bare_side import PIECE_ELEMENTS, PIECE_ROWS
from benchmark import DONE, FAILED, NO_PEER, PEER_MISSING, PYTHON_VARIABLE, Plan, missing_lines, peer_python, run
from exchange import Drawer, Work, difference
from groups import BARE, Group, SideError, start_bare
from reporting import Figures, PeerRounds, Round, Row, better, figures_of, joined, progress_told, row_of, table_of
from store_cases import RATE, Case, case_from_json, many_keys, one_key, resnet50_shapes, sparse

CASE = Case("small", ((3, 5), (40,)), workers=2, servers=2, iterations=2, warm_up=1)
TABLE = Case("rows", ((50, 4),), workers=2, servers=2, iterations=2, warm_up=1, rows=20)

WEFT = (Round((0.004, 0.002, 0.003), 100.0), Round((0.005, 0.009, 0.007), 104.0))
"""Medians 3 and 7 ms; of all six 4.5 ms."""


def peer_of(*times_s: float, name: str = "peer") -> PeerRounds:
    return PeerRounds(name, [Round(times_s, None)])


def test_figures_are_the_median_of_all_iterations_and_the_range_of_the_rounds_medians() -> None:
    assert figures_of(WEFT) == Figures(pytest.approx(4.5), pytest.approx(3.0), pytest.approx(7.0))


def test_a_round_lasts_from_the_first_start_to_the_last_end_and_adds_the_workers_bytes() -> None:
    words = [
        {"spans": [[1.0, 1.5], [2.0, 2.25]], "wire": 10.0},
        {"spans": [[1.25, 2.0], [1.5, 1.75]], "wire": 5.5},
    ]
    assert joined(words) == Round((1.0, 0.75), 15.5)
    assert joined([words[0], {**words[1], "wire": None}]).wire_bytes is None


def test_the_ratio_is_wefts_time_over_the_peers() -> None:
    row = row_of("small", "tcp", WEFT, peer_of(0.009, 0.018, 0.010))
    assert row.ratio == pytest.approx(4.5 / 10.0)
    assert row.wire_bytes == 102
    assert row.missing is None


def test_a_missing_peer_leaves_wefts_figures_and_no_ratio() -> None:
    row = row_of("small", "tcp", WEFT, PeerRounds("peer", missing="not there"))
    assert (row.peer, row.ratio, row.missing) == (None, None, "not there")
    assert row.weft == figures_of(WEFT)


def test_the_better_setting_of_a_peer_has_the_lower_median() -> None:
    slow, fast = peer_of(0.004, 0.001, 0.004), peer_of(0.003, 0.003, 0.009)
    assert better([slow, fast]) is fast
    assert better([fast, slow]) is fast


def test_a_setting_that_failed_makes_the_peer_missing() -> None:
    failed = PeerRounds("peer, OMP 2", missing="has ended")
    assert better([peer_of(0.001), failed]) is failed


def test_the_list_of_resnet_50_has_its_published_size() -> None:
    shapes = resnet50_shapes()
    assert len(shapes) == 161
    assert sum(math.prod(shape) for shape in shapes) == 25_557_032


def test_cases_have_their_names_and_travel_as_json() -> None:
    cases = (*many_keys(), *one_key(), *sparse())
    assert {case.name for case in cases} == {
        *("resnet50-1s1w-tcp", "resnet50-2s2w-tcp", "resnet50-2s2w-samehost", "resnet50-2s2w-inplace"),
        *(
            "resnet50-2s2w-curve",
            "flight-4KiB-1s1w",
            "flight-4KiB-2s2w",
            "calls-4KiB-1s1w",
            "rows-1s1w-samehost",
            "key-4KiB-pushpull",
        ),
        *("key-4KiB", "key-64KiB", "key-1MiB", "key-16MiB", "key-64MiB", "rows-1s1w-tcp", "rows-2s2w-tcp"),
    }
    assert all(case_from_json(case.to_json()) == case for case in cases)
    assert [case.payload_bytes for case in one_key()] == [4 << 10, 4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20]
    assert {case.payload_bytes for case in sparse()} == {4096 * 64 * 4}


@pytest.mark.parametrize("case", [CASE, TABLE], ids=["dense", "rows"])
def test_gradients_are_anew_at_each_step_and_slot_and_the_same_in_each_process(case: Case) -> None:
    def drawn(slot: int, step: int) -> Work:
        return Drawer(case).draw(slot, step)

    for place, array in enumerate(drawn(0, 1).gradients):
        assert np.array_equal(array, drawn(0, 1).gradients[place])
        assert not np.array_equal(array, drawn(0, 2).gradients[place])
        assert not np.array_equal(array, drawn(1, 1).gradients[place])
        assert np.all(np.abs(array) <= 0.5)


def test_the_comparison_finds_a_slot_that_was_left_out() -> None:
    works = [Drawer(CASE).draw(slot, 0) for slot in range(2)]
    before = [np.ones(shape, np.float32) for shape in CASE.shapes]
    after = [old - RATE * (a + b) for old, a, b in zip(before, *(work.gradients for work in works), strict=True)]
    assert difference(before, works, 0, after) < 1e-6
    assert difference(before, works[:1], 0, after) > 1e-3
    after[1][7] = np.nan
    assert difference(before, works, 0, after) == math.inf


def test_rows_of_another_slot_count_where_both_have_them() -> None:
    works = [Drawer(TABLE).draw(slot, 3) for slot in range(2)]
    table = np.ones(TABLE.shapes[0])
    for work in works:
        assert np.array_equal(work.ids, np.unique(work.ids))
        np.subtract.at(table, work.ids, RATE * work.gradients[0])
    assert np.intersect1d(works[0].ids, works[1].ids).size
    before, after = [np.ones((TABLE.rows, 4), np.float32)], [table[works[1].ids]]
    assert difference(before, works, 1, after) < 1e-6
    assert difference(before, [Work(works[0].gradients, works[1].ids), works[1]], 1, after) > 1e-3


def row(missing: str | None = None, case: str = "resnet50-2s2w-tcp") -> Row:
    peer = PeerRounds("MXNet 1.9.1, OMP 1", missing=missing) if missing else peer_of(0.4, name="MXNet 1.9.1, OMP 1")
    return row_of(case, "tcp", [Round((0.2,), 409e6), Round((0.3,), 409e6)], peer)


def test_the_table_is_whole_on_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    Console(width=80).print(table_of([row(), row("not there")]))
    shown = capsys.readouterr().out
    assert "…" not in shown
    for text in ("resnet50-2s2w-tcp", "over tcp", "MXNet 1.9.1", "OMP 1", "250", "200-300", "400", "0.62", "409 MB"):
        assert text in shown
    assert "missing" in shown


def told(
    monkeypatch: pytest.MonkeyPatch, answer: Callable[[Case], Row], *arguments: str, python: str | None = None
) -> int:
    """Runs the benchmark with `answer` in the place of what measures a case."""
    monkeypatch.delenv(PYTHON_VARIABLE, raising=False)
    if python is not None:
        monkeypatch.setenv(PYTHON_VARIABLE, python)

    def measuring(case: Case, _plan: Plan, _progress: Callable[[str], None]) -> tuple[list[Row], dict[str, str]]:
        return [answer(case)], {"weft.numpy": "2"}

    return run("a test", [CASE, TABLE], arguments, measuring=measuring)


def test_the_document_has_conditions_and_a_row_for_each_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rows.json"
    code = told(monkeypatch, lambda case: row(case=case.name), "--json", str(path), "--rounds", "3")
    assert code == DONE
    document = json.loads(path.read_text())
    assert set(document) == {"conditions", "rows"}
    assert document["conditions"]["rounds"] == 3
    assert document["conditions"]["versions"] == {"weft.numpy": "2"}
    assert [each["case"] for each in document["rows"]] == ["small", "rows"]
    first = document["rows"][0]
    assert {"case", "transport", "weft_ms", "peer_ms", "peer_name", "ratio", "wire_bytes"} <= set(first)
    assert (first["weft_ms"], first["peer_ms"], first["ratio"]) == pytest.approx((250.0, 400.0, 0.625))
    assert first["weft_spread_ms"] == pytest.approx([200.0, 300.0])
    assert [path] == list(tmp_path.iterdir())


def test_why_a_peer_is_missing_is_said_once_and_says_where_to_read_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert told(monkeypatch, lambda case: row(NO_PEER, case.name)) == PEER_MISSING
    shown = capsys.readouterr().out
    assert shown.count(NO_PEER) == 1
    assert "small and 1 more: MXNet 1.9.1, OMP 1 is missing: MXNET_PYTHON names no Python with MXNet" in shown
    assert "docs/benchmarks.md" in shown
    assert (Path(__file__).parents[2] / "docs" / "benchmarks.md").is_file()
    others = missing_lines([row(case="there"), row("not there", "a"), row("has ended", "b"), row("not there", "c")])
    assert [line.split(":")[0] for line in others] == ["a and 1 more", "b"]


@pytest.mark.parametrize("total", [None, 4])
def test_a_pipe_is_told_of_each_case_once_and_a_terminal_is_left_as_it_was(total: int | None) -> None:
    for terminal in (False, True):
        shown = io.StringIO()
        with progress_told(total, console=Console(file=shown, force_terminal=terminal, width=80)) as progress:
            for text in ("key-4KiB: starts weft", "key-4KiB: weft, round 1", "key-[1]MiB: starts weft", "memory"):
                progress(text)
        if terminal:
            assert "\x1b[2K" in shown.getvalue()  # the bar is wiped
        else:
            assert shown.getvalue() == "key-4KiB\nkey-[1]MiB\nmemory\n"


def test_a_failure_of_weft_ends_with_1(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fails(_case: Case) -> Row:
        raise SideError("worker 1 [slot 1] has ended")

    assert told(monkeypatch, fails) == FAILED
    assert "worker 1 [slot 1] has ended" in capsys.readouterr().out


def test_a_document_that_cannot_be_written_ends_with_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert told(monkeypatch, lambda _: row(), "--json", str(tmp_path / "none" / "rows.json")) == FAILED


def test_a_peer_is_there_where_the_environment_names_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "python"
    program.touch(0o755)
    for path, found in ((program, str(program)), (tmp_path, None), (tmp_path / "none", None), ("", None)):
        monkeypatch.setenv(PYTHON_VARIABLE, str(path))
        assert peer_python() == found


@pytest.mark.parametrize(
    "case",
    [
        replace(CASE, shapes=((3, 5), (BLOCK_ELEMENTS + 7,), (PIECE_ELEMENTS,)), workers=1, servers=1),
        replace(CASE, shapes=((3, 5), (2 * PIECE_ELEMENTS + 1,)), workers=3),
        replace(CASE, transport="samehost"),
        replace(CASE, transport="inplace"),
        TABLE,
        replace(TABLE, shapes=((3 * PIECE_ROWS, 4),), rows=PIECE_ROWS + 5, workers=1, servers=1),
    ],
    ids=["alone", "pieces", "samehost", "inplace", "rows", "rows-alone"],
)
def test_the_bare_exchange_comes_to_numpys_values_in_real_processes(case: Case) -> None:
    before = descendants(os.getpid())
    with TemporaryDirectory() as directory, Group(BARE, case, Path(directory)) as group:
        start_bare(group)
        group.wait_until_ready()
        for _ in range(2):
            round_ = group.round()  # Raises SideError where values are others.
            assert len(round_.times_s) == case.iterations
            assert round_.wire_bytes is None
    assert descendants(os.getpid()) <= before


def test_without_a_peer_real_processes_run_beside_the_bare_exchange_and_the_end_is_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(PYTHON_VARIABLE, raising=False)
    path = tmp_path / "rows.json"
    assert run("a test", [CASE, TABLE], ["--rounds", "1", "--json", str(path)], bare=True) == PEER_MISSING
    document, shown = json.loads(path.read_text()), capsys.readouterr().out
    assert [(one["case"], one["peer_name"]) for one in document["rows"]] == [
        ("small", "MXNet"),
        ("small", BARE),
        ("rows", "MXNet"),
        ("rows", BARE),
    ]
    for found, case in zip(document["rows"][::2], (CASE, TABLE), strict=True):
        assert (found["peer_ms"], found["ratio"]) == (None, None)
        both_ways = 2 * case.workers * case.payload_bytes
        assert both_ways < found["wire_bytes"] < both_ways + 20_000
    assert f"small and 1 more: MXNet is missing: {PYTHON_VARIABLE} names no Python" in shown
    for limit in document["rows"][1::2]:
        assert limit["ratio"] == pytest.approx(limit["weft_ms"] / limit["peer_ms"])
    assert "bare.pyzmq" in document["conditions"]["versions"]
    assert BARE in shown


def test_a_peer_that_cannot_start_is_missing_says_why_and_leaves_no_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(PYTHON_VARIABLE, sys.executable)  # which has no MXNet
    before = descendants(os.getpid())
    assert run("a test", [CASE], ["--rounds", "1"]) == PEER_MISSING
    shown = capsys.readouterr().out
    assert "small: MXNet, OMP 1 is missing: MXNet OMP 1, worker 0 has ended" in shown
    assert "No module named 'mxnet'" in shown
    assert descendants(os.getpid()) <= before


def test_a_server_that_ends_fails_its_side_at_once_with_what_it_said_last() -> None:
    with TemporaryDirectory() as directory, Group("weft", CASE, Path(directory)) as group:
        group.serve("shard 0", [sys.executable, "-c", "raise SystemExit('no port is left')"], {})
        group.work("worker 0", [sys.executable, "-c", "import sys; sys.stdin.read()"], {})
        with pytest.raises(SideError, match="weft, shard 0 has ended\nno port is left"):
            group.wait_until_ready()


def test_who_interrupts_the_end_of_a_group_ends_its_processes_by_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = descendants(os.getpid())
    group = Group("weft", CASE, tmp_path)
    group.serve("deaf", [sys.executable, "-c", "import time; time.sleep(600)"], {})

    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(group, "_leave", interrupted)
    assert descendants(os.getpid()) > before
    with pytest.raises(KeyboardInterrupt):
        group.close()
    assert descendants(os.getpid()) <= before
