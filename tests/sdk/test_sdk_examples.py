"""The digits example: what it builds can be submitted, and evaluation is on rows that training never reads."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import weft
from acceptance_processes import load_script
from sdk_fakes import answers, job
from weft.api.job import JobSpec
from weft_graph.check import check
from weft_graph.json_form import graph_from_json


@pytest.fixture(scope="module")
def digits() -> ModuleType:
    return load_script("examples/digits.py")


def test_the_last_rows_are_those_of_the_data_set_and_no_image_is_on_both_sides(
    digits: ModuleType, tmp_path: Path
) -> None:
    path = tmp_path / "digits.npz"
    rows = digits.write_data(path)
    with np.load(path) as written:
        image, label = written["image"], written["label"]
    assert (image.dtype, label.dtype, image.shape[1:]) == (np.float32, np.int64, (1, 8, 8))
    assert len(image) == len(label) == rows
    assert (image.min(), image.max()) == (0, 1)
    from sklearn.datasets import load_digits  # of the processes of the tests, one needs it

    source = load_digits()
    held_out = digits.EVALUATION_ROWS
    np.testing.assert_array_equal(image[-held_out:, 0] * 16, source.images[-held_out:])
    np.testing.assert_array_equal(label[-held_out:], source.target[-held_out:])
    trained = {each.tobytes() for each in image[:-held_out]}
    assert not any(each.tobytes() in trained for each in image[-held_out:])


def test_what_it_submits_is_a_legal_job_that_keeps_the_last_rows_back(digits: ModuleType) -> None:
    script = answers(job())
    digits.train(script.client(), "digits.npz", 2000, 3)
    spec = JobSpec.model_validate(script.body())
    check(graph_from_json(spec.graph))
    assert spec.data.train is not None
    assert spec.data.evaluate is not None
    assert (spec.data.train.stop, spec.data.evaluate.start, spec.data.evaluate.stop) == (1640, 1640, 2000)
    assert (spec.parallelism.workers, spec.parallelism.shards, spec.run.epochs) == (2, 2, 3)


def test_it_evaluates_here_and_now(digits: ModuleType) -> None:
    loss, accuracy = digits.build()
    image = np.random.default_rng(0).random((20, 1, 8, 8))
    loss_value, share = weft.group(loss, accuracy).eval({"image": image, "label": np.arange(20) % 10})
    assert 1 < loss_value < 6
    assert 0 <= share <= 1
