"""What a submitted job is refused for: each with its pointer and both sides."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from server_specs import ROWS, linear, save_rows, spec, spec_json
from weft.api.job import JobSpec
from weft.api.optimizer import SGD, Adam
from weft.api.store import InitializerSpec
from weft_graph.convert import convert
from weft_graph.program_json import programs_to_json
from weft_kvstore.description.check import DescriptionError, check_description
from weft_kvstore.description.records import descriptions
from weft_server.planning.check import read_and_check
from weft_server.planning.estimate import Bounds
from weft_server.planning.plan import JobPlan
from weft_server.planning.rule_planning import plan_rule
from weft_server.refusals import JobRefusedError


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    return save_rows(tmp_path / "rows.npz")


def refused(document: dict[str, Any], bounds: Bounds | None = None) -> dict[str, str]:
    """Pointer -> detail of everything that is wrong with the job."""
    with pytest.raises(JobRefusedError) as caught:
        read_and_check(JobSpec.model_validate(document), None, bounds or Bounds())
    found: dict[str, str] = {}
    for error in caught.value.errors:
        found[error.pointer] = f"{found.get(error.pointer, '')}{error.detail}"
    return found


def changed(rows: Path, pointer: str, value: Any) -> dict[str, Any]:
    """The job that can run, with one thing in it replaced."""
    document = copy.deepcopy(spec_json(rows))
    here: Any = document
    *path, last = pointer.strip("/").split("/")
    for token in path:
        here = here[int(token)] if isinstance(here, list) else here[token]
    here[int(last) if isinstance(here, list) else last] = value
    return document


def test_a_job_that_can_run_gets_a_plan(rows: Path) -> None:
    plan = read_and_check(spec(rows), None, Bounds())
    assert (plan.steps, plan.steps_per_epoch, plan.workers, plan.shards) == (6, 3, 2, 1)
    assert plan.programs == programs_to_json(convert(linear(), loss="loss", metrics={}))
    kept = plan.model_dump(mode="json", exclude={"programs_json"})
    assert JobPlan.model_validate({**kept, "programs": plan.programs}) == plan  # as the releases before kept it
    assert [(key.key, key.dtype, key.shape, key.slots) for key in plan.keys] == [
        ("w", "float32", [4, 3], [0, 1]),
        ("b", "float32", [3], [0, 1]),
    ]
    assert plan.parameter_bytes == (12 + 3) * 4


def test_training_rows_that_are_left_out_are_all_of_them(rows: Path) -> None:
    document = spec_json(rows)
    del document["data"]["train"], document["data"]["evaluate"]
    plan = read_and_check(JobSpec.model_validate(document), None, Bounds())
    assert plan.data.train is not None
    assert (plan.data.train.start, plan.data.train.stop) == (0, ROWS)
    assert plan.steps == 2 * 4


def test_samples_of_steps_and_passes_follow_the_batches(rows: Path) -> None:
    plan = read_and_check(spec(rows, data={**spec_json(rows)["data"], "batch_size": 5}), None, Bounds())
    # Twelve rows in batches of five: 5, 5, 2.
    assert [plan.samples_until(step) for step in range(5)] == [0, 5, 10, 12, 17]
    assert [plan.epochs_begun(step) for step in range(5)] == [0, 1, 1, 1, 2]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (SGD(lr=0.5), ("sgd", {"lr": 0.5, "weight_decay": 0.0})),
        (SGD(lr=0.5, momentum=0.9), ("momentum", {"lr": 0.5, "weight_decay": 0.0, "momentum": 0.9})),
        (Adam(), ("adam", {"lr": 0.001, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8})),
    ],
)
def test_rules_become_those_of_the_shard(rule: SGD | Adam, expected: tuple[str, dict[str, float]]) -> None:
    planned = plan_rule(rule)
    assert (planned.rule, planned.hyper) == expected


@pytest.mark.parametrize(
    ("pointer", "value", "where", "says"),
    [
        ("/loss", "scores", "/graph", "it must be a scalar"),
        ("/loss", "nothing", "/loss", "it has 'loss', 'scores'"),
        ("/metrics", {"right": "nothing"}, "/metrics/right", "no output"),
        ("/metrics", {"loss": "scores"}, "/metrics/loss", "always the loss"),
        ("/graph/nodes/0/op_type", "Gremm", "/graph/nodes/0/op_type", "Gremm"),
        ("/graph/format_version", 99, "/graph/format_version", "99"),
        ("/data/columns", {"x": "images"}, "/data/columns", "no column feeds the model's input 'y'"),
        ("/data/columns/z", "images", "/data/columns/z", "the graph has no input 'z'"),
        ("/data/columns/x", "pictures", "/data/columns/x", "no column 'pictures'"),
        (
            "/data/columns/x",
            "labels",
            "/data/columns/x",
            "column 'labels' is int64 and input 'x' is float32: save the column with .astype('float32')",
        ),
        ("/data/columns/y", "images", "/data/columns/y", "and one of one-hot rows with .argmax(axis=1)"),
        (
            "/data/train/stop",
            17,
            "/data/train/stop",
            "rows 0 to 17 are asked for, and the data has 16 rows: end at 16 or before",
        ),
        ("/data/evaluate/start", 11, "/data/evaluate", "11 to 16 overlap with training rows 0 to 12"),
        ("/data/train", None, "/data/evaluate", "0 to 16 (all rows, as train is left out)"),
        ("/data/source/path", "/nowhere/rows.npz", "/data/source/path", "/nowhere/rows.npz"),
        ("/run/epochs", 1 << 52, "/run/epochs", "steps are more than"),
    ],
)
def test_what_is_wrong_is_named(rows: Path, pointer: str, value: Any, where: str, says: str) -> None:
    try:
        document = changed(rows, pointer, value)
        JobSpec.model_validate(document)
    except ValueError as error:
        pytest.fail(f"the models refuse it before the check: {error}")
    found = refused(document)
    assert where in found, found
    assert says in found[where]


def test_evaluation_every_few_steps_needs_rows_to_evaluate_on(rows: Path) -> None:
    document = changed(rows, "/run/evaluate_every", 2)
    document["data"]["evaluate"] = None
    assert "nothing to evaluate on" in refused(document)["/run/evaluate_every"]


def test_graph_and_source_are_both_looked_at(rows: Path) -> None:
    document = changed(rows, "/graph/nodes/0/op_type", "Gremm")
    document["data"]["source"]["path"] = "/nowhere"
    assert refused(document).keys() == {"/graph/nodes/0/op_type", "/data/source/path"}


def test_a_row_of_another_shape_is_refused_with_both_shapes(tmp_path: Path) -> None:
    rows = save_rows(tmp_path / "wide.npz", images=np.zeros((ROWS, 7), np.float32))
    detail = refused(spec_json(rows))["/data/columns/x"]
    assert detail == (
        "a row of column 'images' has shape [7] and a sample of input 'x' has [4]: "
        "reshape the column, or declare the input so"
    )


def test_a_file_outside_the_roots_is_refused(rows: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    with pytest.raises(JobRefusedError, match="is not below a directory that jobs may read data from"):
        read_and_check(spec(rows), [root], Bounds())
    assert read_and_check(spec(rows), [tmp_path], Bounds()).steps == 6


def test_a_file_that_is_no_archive_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.npz"
    path.write_bytes(b"no archive at all")
    assert "not a .npz archive" in refused(spec_json(path))["/data/source/path"]


def test_an_unreadable_column_is_refused_at_every_input_that_it_feeds(tmp_path: Path) -> None:
    rows = save_rows(tmp_path / "rows.npz", labels=np.array(["a"] * ROWS))
    assert "'labels'" in refused(spec_json(rows))["/data/columns/y"]


def test_parameters_with_the_rules_state_are_bounded(rows: Path) -> None:
    document = spec_json(rows, optimizer={"name": "adam"})
    assert refused(document, Bounds(parameter_bytes=179)) == {
        "/graph/parameters": "the parameters with the state of optimizer 'adam' take 180 bytes; this server allows 179"
    }
    read_and_check(JobSpec.model_validate(document), None, Bounds(parameter_bytes=180))


def test_a_job_of_too_many_slices_is_refused_before_anybody_counts_them(rows: Path) -> None:
    document = changed(rows, "/parallelism", {"slice_bytes": 64})
    table = {"name": "table", "dtype": "float32", "shape": [199_999 * 16], "trainable": False}
    table["initializer"] = {"op_type": "ConstantOfShape", "attributes": {"value": 0.0}}
    document["graph"]["parameters"].append(table)
    assert refused(document) == {
        "/parallelism/slice_bytes": "the parameters are 200001 slices of at most 64 bytes, more than 200000: "
        "larger slices are fewer"
    }
    document["parallelism"]["slice_bytes"] = 128
    plan = read_and_check(JobSpec.model_validate(document), None, Bounds())
    assert plan.slices == 100_000 + 2


def test_a_table_of_very_long_rows_is_refused(rows: Path) -> None:
    document = spec_json(rows)
    table = {"name": "table", "dtype": "float32", "shape": [3, (1 << 20) + 1], "trainable": False}
    table["initializer"] = {"op_type": "ConstantOfShape", "attributes": {"value": 0.0}}
    document["graph"]["parameters"].append(table)
    document["graph"]["nodes"] += [
        {"op_type": "Cast", "name": "ids", "inputs": ["y"], "outputs": ["ids"], "attributes": {"to": 7}},
        {"op_type": "Gather", "name": "rows", "inputs": ["table", "ids"], "outputs": ["read"]},
        {"op_type": "ReduceMean", "name": "m", "inputs": ["read"], "outputs": ["m"], "attributes": {"keepdims": 0}},
    ]
    document["graph"]["outputs"].append("m")
    document["metrics"] = {"m": "m"}
    assert "a row of table 'table' has 4194308 bytes, more than 4194304" in str(refused(document))


def test_a_job_that_takes_more_memory_than_the_one_machine_has_is_refused_with_what_takes_it(rows: Path) -> None:
    """All its processes together: a bound for each would let two workers take twice what there is."""

    def told(workers: int) -> list[int]:
        spec = spec_json(rows, parallelism={"workers": workers, "shards": 1}, optimizer={"name": "adam"})
        found = refused(spec, Bounds(machine_bytes=1))
        detail = found["/data/batch_size"]
        assert "`accumulate` or fewer workers take less" in detail
        return [int(number) for number in re.findall(r"\d+", detail)]

    kept = (12 + 3) * 4 * 3
    for workers in (1, 2):
        together, dense, step, counted, machine = told(workers)
        assert (dense, counted, machine) == (kept, workers, 1)
        assert together == dense + workers * step
        spec = JobSpec.model_validate(
            spec_json(rows, parallelism={"workers": workers, "shards": 1}, optimizer={"name": "adam"})
        )
        read_and_check(spec, None, Bounds(machine_bytes=together))


def test_a_process_that_takes_more_memory_than_any_agent_gives_is_refused_by_what_takes_it(rows: Path) -> None:
    spec = spec_json(rows, parallelism={"workers": 2, "shards": 2}, optimizer={"name": "adam"})
    plan = read_and_check(JobSpec.model_validate(spec), None, Bounds())
    assert plan.shard_bytes == (12 + 3) * 4 * 3 // 2
    least = Bounds(worker_bytes=plan.worker_bytes, shard_bytes=plan.shard_bytes)
    read_and_check(JobSpec.model_validate(spec), None, least)
    found = refused(spec, Bounds(worker_bytes=plan.worker_bytes - 1, shard_bytes=plan.shard_bytes - 1))
    assert found.keys() == {"/data/batch_size", "/parallelism/shards"}
    assert f"takes {plan.shard_bytes} bytes of memory" in found["/parallelism/shards"]


def test_a_workers_step_is_bounded(rows: Path) -> None:
    found = refused(spec_json(rows), Bounds(step_bytes=100))
    assert found.keys() == {"/data/batch_size"}
    assert "this server allows 100" in found["/data/batch_size"]


def test_an_input_that_does_not_begin_with_the_batch_is_refused(rows: Path) -> None:
    document = changed(rows, "/graph/inputs/0/shape", [4, 4])
    found = refused(document)
    assert "is float32[4, 4]: its first dimension has to be 'batch'" in found["/graph/inputs/0/shape"]
    assert "from_torch without dynamic=False" in found["/graph/inputs/0/shape"]


def test_a_refusal_does_not_grow_with_the_graph_times_the_job(rows: Path) -> None:
    document = changed(rows, "/metrics", {f"m{n}": "nowhere" for n in range(200)})
    with pytest.raises(JobRefusedError) as caught:
        read_and_check(JobSpec.model_validate(document), None, Bounds())
    assert len(caught.value.errors) == 50
    assert str(caught.value).endswith("and 47 more")


def test_a_parameter_cannot_take_the_name_of_a_files_metadata(rows: Path) -> None:
    document = spec_json(rows)
    text = json.dumps(document["graph"]).replace('"w"', '"__metadata__"')
    assert "/graph/parameters/0/name" in refused({**document, "graph": json.loads(text)})


def half_precision(tmp_path: Path, rule: dict[str, Any], initializer: dict[str, Any]) -> dict[str, Any]:
    """The job in float16, `w` first made so."""
    document = spec_json(save_rows(tmp_path / "half.npz", images=np.zeros((ROWS, 4), np.float16)), optimizer=rule)
    for typed in (*document["graph"]["parameters"], document["graph"]["inputs"][0]):
        typed["dtype"] = "float16"
    document["graph"]["parameters"][0]["initializer"] = initializer
    return document


def takes(check: Callable[[], object], refusal: type[Exception]) -> bool:
    try:
        check()
    except refusal:
        return False
    return True


@pytest.mark.parametrize(
    ("lr", "factor", "op_type", "numbers", "taken"),
    [
        (65504.0, 1.0, "ConstantOfShape", {"value": 65519.0}, True),
        (0.5, 131008.0, "RandomUniform", {"low": -32752.0, "high": 32752.0}, True),
        (0.01, 1e6, "RandomNormal", {"mean": -65504.0, "scale": 65504.0}, True),
        (1e6, 0.0, "ConstantOfShape", {"value": 0.0}, True),
        (65505.0, 1.0, "ConstantOfShape", {"value": 0.0}, False),
        (0.5, 131009.0, "ConstantOfShape", {"value": 0.0}, False),
        (0.1, 1.0, "ConstantOfShape", {"value": 65520.0}, False),
        (0.1, 1.0, "RandomUniform", {"low": -32760.0, "high": 32760.0}, False),
        (0.1, 1.0, "RandomNormal", {"mean": -65520.0, "scale": 1.0}, False),
    ],
)
def test_numbers_that_a_parameter_cannot_have_are_those_that_the_store_would_refuse(
    tmp_path: Path, lr: float, factor: float, op_type: str, numbers: dict[str, float], taken: bool
) -> None:
    rule = {"name": "sgd", "lr": lr, "multipliers": [{"keys": "w", "lr": factor}]}
    tame = {"op_type": "ConstantOfShape", "attributes": {"value": 0.0}}
    wanted = JobSpec.model_validate(half_precision(tmp_path, rule, {"op_type": op_type, "attributes": numbers}))
    plan = read_and_check(JobSpec.model_validate(half_precision(tmp_path, {"name": "sgd"}, tame)), None, Bounds())
    given = {"initializer": InitializerSpec(op_type=op_type, attributes=numbers), "multipliers": {"lr": factor}}
    keys = [plan.keys[0].model_copy(update=given)]
    stored = plan.model_copy(update={"keys": keys, "hyper": {"lr": lr, "weight_decay": 0.0}})
    description = descriptions.from_builtins(stored.store("job", 1, ["tcp://127.0.0.1:1"]).model_dump(mode="json"))
    assert takes(lambda: check_description(description), DescriptionError) is taken
    for parameter in wanted.graph["parameters"][1:]:
        parameter["trainable"] = False  # What `w` can have is asked, and the rate is for no other one.
    assert takes(lambda: read_and_check(wanted, None, Bounds()), JobRefusedError) is taken
