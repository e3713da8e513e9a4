"""The source-lines example: its lines and table rows, and that what it submits is a legal job."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import python_lines
import source_lines
from sdk_fakes import answers, job
from weft.api.job import JobSpec
from weft_graph.check import check
from weft_graph.json_form import graph_from_json


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A library of two modules with enough lines, one package with too few, and what is to be left out."""
    files = {
        "alpha.py": [f"alpha = call({n})" for n in range(700)] + ["    shared = line(1)", "x = 1"],
        "beta/inner/deep.py": [f"    beta[{n}] = None" for n in range(600)] + ["shared = line(1)"],
        "small.py": [f"small_{n} = {n}" for n in range(499)],
        "test/test_alpha.py": [f"assert alpha({n})" for n in range(700)],
        "beta/tests/check.py": [f"assert beta({n})" for n in range(700)],
        "site-packages/extra.py": [f"extra({n} + 1)" for n in range(700)],
        "_sysconfigdata__linux.py": [f"'VARIABLE_{n}': 1" for n in range(700)],
    }
    for name, lines in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    (tmp_path / "gamma.py").write_bytes(b"\xff\xfe not utf-8\n" * 3)
    return tmp_path


def test_classes_have_enough_lines_that_no_other_has(library: Path) -> None:
    lines = python_lines.read_lines(library, fewest_classes=2)
    assert lines.names == ["alpha", "beta"]
    assert np.bincount(lines.label).tolist() == [700, 600]
    assert "shared = line(1)" not in lines.text
    assert len(lines.text) == len(set(lines.text)) == len(lines.label)
    share = 1 - lines.trained / len(lines.text)
    assert 0.05 < share < 0.15
    assert {lines.text[place].split()[0] for place in np.flatnonzero(lines.label == 0)} == {"alpha"}


def test_what_is_held_out_does_not_depend_on_the_process_or_on_other_lines(library: Path) -> None:
    lines = python_lines.read_lines(library, fewest_classes=2)
    fewer = python_lines.read_lines(library, most=100, fewest_classes=2)
    assert len(fewer.text) == 200
    assert set(fewer.text[fewer.trained :]) <= set(lines.text[lines.trained :])
    code = f"import sys; sys.path.insert(0, {str(Path(python_lines.__file__).parent)!r}); import python_lines as p\n"
    code += "print(p.table_rows('def read_lines(root: Path | None) -> Lines:'))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": "7"}
    )
    assert done.stdout.strip() == str(python_lines.table_rows("def read_lines(root: Path | None) -> Lines:"))


def test_a_library_without_source_says_what_is_missing(library: Path) -> None:
    with pytest.raises(python_lines.LibraryMissingError, match=r"source of 2 modules of 500 lines.*and 20 are needed"):
        python_lines.read_lines(library)
    with pytest.raises(python_lines.LibraryMissingError, match="source of 0 modules"):
        python_lines.read_lines(library / "nowhere")


def test_rows_are_within_the_table_and_none_of_them_is_padding() -> None:
    lines = ["x", "", "ü = 'naïve'", "a " * 300, "identifier_of_some_length(another_identifier)"]
    rows = [python_lines.table_rows(line) for line in lines]
    for each in rows:
        assert len(each) == len(set(each)) <= python_lines.LENGTH
        assert all(0 < row < python_lines.ROWS for row in each)
    filled = python_lines.padded(lines)
    assert (filled.shape, filled.dtype) == ((5, python_lines.LENGTH), np.int64)
    for place, each in enumerate(rows):
        np.testing.assert_array_equal(filled[place][filled[place] > 0], each)
    assert python_lines.table_rows("foo")[0] in python_lines.table_rows("bar foo")


def test_what_it_submits_is_a_legal_job_with_a_table(library: Path) -> None:
    script = answers(job())
    lines = python_lines.read_lines(library, fewest_classes=2)
    source_lines.train(script.client(), Path("lines.npz"), lines, 3)
    spec = JobSpec.model_validate(script.body())
    graph = graph_from_json(spec.graph)
    check(graph)
    (table,) = [parameter for parameter in graph.parameters if parameter.type.shape[0] == python_lines.ROWS]
    assert table.row_sparse
    assert spec.data.evaluate is not None
    assert (spec.data.evaluate.start, spec.data.evaluate.stop) == (lines.trained, len(lines.text))


def test_predictions_need_the_rows_of_their_lines_alone(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    table = rng.standard_normal((python_lines.ROWS, source_lines.WIDTH)).astype(np.float32)
    weight, bias = rng.standard_normal((3, source_lines.WIDTH)).astype(np.float32), np.ones(3, np.float32)
    path = tmp_path / "lines.safetensors"
    save_file({"lines.weight": table, "scores.weight": weight, "scores.bias": bias}, path)
    text = ["import numpy as np", "x"]
    shares = source_lines.predict(path, text, 3)
    means = np.stack([table[python_lines.table_rows(line)].mean(axis=0) for line in text])
    powers = np.exp(means @ weight.T + bias)
    np.testing.assert_allclose(shares, powers / powers.sum(axis=1, keepdims=True), rtol=1e-4)
