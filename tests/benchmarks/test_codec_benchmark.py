"""The benchmark of codecs measures what it says, and tells of it as all benchmarks do."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmark import DONE, run
from compression import codec_cases, coding_of, measure_codec
from store_cases import Case

SLICE_BYTES = 4096


def small(case: Case) -> Case:
    return replace(case, shapes=((5000,),), iterations=2, warm_up=1)


@pytest.mark.parametrize("case", codec_cases(), ids=lambda case: case.name)
def test_what_is_timed_is_the_codecs_work(case: Case) -> None:
    coding, work = coding_of(small(case), SLICE_BYTES)
    coding.payload[:] = coding.codec.encode(coding.gradients[0], coding.bounds)
    before = coding.payload.copy()
    work(1)
    if "encode" in case.name:
        assert coding.payload.tobytes() != before.tobytes()
    else:
        np.testing.assert_array_equal(coding.values, coding.codec.decode(before, coding.bounds))


def test_the_document_has_a_row_for_each_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MXNET_PYTHON", raising=False)
    cases = [small(case) for case in codec_cases() if case.name.endswith("1MiB")]
    arguments = ["--rounds", "2", "--slice-bytes", str(SLICE_BYTES), "--json", str(tmp_path / "rows.json")]
    assert run("Compression", cases, arguments, measuring=measure_codec) == DONE
    rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert [row["case"] for row in rows] == [case.name for case in cases]
    assert all(row["peer_name"] == "copy" and row["ratio"] > 0 for row in rows)
    wire = {row["case"]: row["wire_bytes"] for row in rows}
    assert (wire["bf16-encode-1MiB"], wire["2bit-encode-1MiB"]) == (10_000, 1252)
