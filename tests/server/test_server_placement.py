"""Groups of nodes at places, as a job asks for them."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from server_specs import save_rows, spec_json
from weft.api.job import JobSpec
from weft_graph.program_json import programs_from_json
from weft_server.planning.check import read_and_check
from weft_server.planning.estimate import Bounds
from weft_server.refusals import JobRefusedError


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    return save_rows(tmp_path / "rows.npz")


def placed(rows: Path, groups: dict[int, str], placement: dict[str, str]) -> dict[str, Any]:
    """A job some of whose nodes, by index, are in groups."""
    document = copy.deepcopy(spec_json(rows))
    for index, group in groups.items():
        document["graph"]["nodes"][index]["group"] = group
    document.setdefault("parallelism", {})["placement"] = placement
    return document


def refused(document: dict[str, Any]) -> dict[str, str]:
    with pytest.raises(JobRefusedError) as caught:
        read_and_check(JobSpec.model_validate(document), None, Bounds())
    return {error.pointer: error.detail for error in caught.value.errors}


def test_one_place_for_all_is_the_workers_and_changes_nothing(rows: Path) -> None:
    plain = read_and_check(JobSpec.model_validate(spec_json(rows)), None, Bounds())
    one = read_and_check(
        JobSpec.model_validate(placed(rows, {0: "a", 1: "b"}, {"a": "cpu", "b": "cpu"})), None, Bounds()
    )
    nodes, before = (programs_from_json(plan.programs).train.nodes for plan in (one, plain))
    assert [node.name for node in nodes] == [node.name for node in before]
    assert not any(node.op_type in {"Copy", "Transfer"} for node in nodes)


def test_groups_without_placement_mean_nothing(rows: Path) -> None:
    plain = read_and_check(JobSpec.model_validate(spec_json(rows)), None, Bounds())
    assert read_and_check(JobSpec.model_validate(placed(rows, {0: "a"}, {})), None, Bounds()).programs == plain.programs


@pytest.mark.parametrize("second", ["cuda:1", "stage:1/cuda:0"])
def test_several_places_are_refused_with_their_names(rows: Path, second: str) -> None:
    found = refused(placed(rows, {0: "a", 1: "b"}, {"a": "cuda:0", "b": second}))
    assert list(found) == ["/parallelism/placement"]
    assert (
        f"groups are at 'cuda:0', '{second}', and a worker computes all of a step on the one device"
        in found["/parallelism/placement"]
    )


def test_a_group_without_a_place_and_a_place_without_a_group_are_named(rows: Path) -> None:
    found = refused(placed(rows, {0: "a", 1: "b/c"}, {"a": "cpu", "d/e": "cpu"}))
    assert "no node of the graph is in group 'd/e'; there are 'a', 'b/c'" in found["/parallelism/placement/d~1e"]
    assert "is in group 'b/c', which /parallelism/placement gives no place" in found["/graph/nodes/1/group"]


@pytest.mark.parametrize("place", ["gpu", "cuda:", "cuda:0 ", "cuda:0\n", "stage:x", "", "stage:1/", "cuda:12345"])
def test_what_is_no_place_is_no_job(rows: Path, place: str) -> None:
    with pytest.raises(ValidationError, match="placement"):
        JobSpec.model_validate(placed(rows, {0: "a"}, {"a": place}))
