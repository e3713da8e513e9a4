"""The cost model: how steps are cut, what constants a fit finds, and what a step waits for."""

from __future__ import annotations

import json
import math
from dataclasses import astuple, replace

import pytest
from rich.console import Console

from constants import costs_of, fit, lone_share, loopback, work_of
from cost_model import (
    Block,
    Cell,
    Constants,
    Cost,
    Estimate,
    Frames,
    Machines,
    MemorySpeed,
    Processes,
    Role,
    StepCosts,
    cells,
    estimate,
    hidden,
    knee,
    layout_of,
    models,
    network,
)
from probe_side import Measured, Probe, probes
from reporting import PeerRounds, Round, row_of
from scaling import Prediction, row_beside, scale_tables
from store_cases import KIB, MIB, Case, resnet50_shapes

MEMORY = MemorySpeed(copy=10e9, add=8e9, descent=4e9, together=1.6)
US, NS = 1e-6, 1e-9
COSTS = {
    Role.CALLER: Cost(90 * US, 10 * US, 15 * US, 30 * US, 0, 0, 0.05 * NS, 0.1 * NS, 0.1 * NS, 0.05 * NS),
    Role.CLIENT: Cost(200 * US, 5 * US, 40 * US, 110 * US, 1 * US, 7 * US, 0.05 * NS, 0.1 * NS, 0.1 * NS, 0.2 * NS),
    Role.CLIENT_WIRE: Cost(20 * US, 4 * US, 20 * US, 50 * US, 0, 1 * US, 0.2 * NS, 0.15 * NS, 0.2 * NS, 0.2 * NS),
    Role.SHARD: Cost(180 * US, 2 * US, 60 * US, 50 * US, 40 * US, 25 * US, 0.3 * NS, 0.1 * NS, 0.4 * NS, 0.2 * NS),
    Role.SHARD_WIRE: Cost(5 * US, 4 * US, 20 * US, 40 * US, 0, 1 * US, 0.15 * NS, 0.2 * NS, 0.2 * NS, 0.3 * NS),
}
CONSTANTS = Constants(COSTS, MEMORY, MEMORY, MIB)
RESNET = [4 * math.prod(shape) for shape in resnet50_shapes()]
TWO_CORES = loopback(2, MEMORY)


def paper(workers: int, shards: int, machines: Machines = TWO_CORES, frames: Frames = Frames()) -> Estimate:  # noqa: B008
    return estimate(RESNET, Processes(workers, shards), CONSTANTS, machines, frames)


def measured(probe: Probe, costs: dict[Role, Cost], time_s: float = 0.0) -> Measured:
    """A probe of a store that costs exactly this."""
    frames = max(1.0, probe.nbytes / MIB) if probe.frame_bytes is None else probe.nbytes / probe.frame_bytes
    slices = -(-probe.nbytes // (probe.slice_bytes or 128 * KIB))
    one = Measured(probe, time_s, {}, frames, probe.pulls * max(1.0, probe.nbytes / (MIB - KIB)), slices)
    return replace(one, processor_s={role: cost.of(work_of(one)) for role, cost in costs.items()})


def test_a_layout_has_every_byte_once_and_spreads_them() -> None:
    for shards in (1, 2, 7):
        layout = layout_of(RESNET, shards, Frames())
        loads = [sum(block.nbytes for block in own) for own in layout.blocks]
        assert sum(loads) == layout.nbytes == sum(RESNET)
        assert max(loads) - min(loads) <= 128 * KIB
        slices = sum(block.slices for own in layout.blocks for block in own)
        assert slices == sum(-(-nbytes // (128 * KIB)) for nbytes in RESNET)
        assert all(block.nbytes <= MIB for own in layout.blocks for block in own)


def test_a_slice_larger_than_a_frame_is_a_frame_of_its_own() -> None:
    layout = layout_of([MIB, KIB], 1, Frames(slice_bytes=MIB, frame_bytes=64 * KIB))
    assert layout.blocks == ((Block(MIB, 1), Block(KIB, 1)),), "each of one array"


def test_the_fit_finds_the_costs_that_the_probes_were_made_of() -> None:
    found = costs_of([measured(probe, COSTS) for probe in probes()])
    for role, cost in COSTS.items():
        work = work_of(measured(Probe(40 * MIB, pulls=2), COSTS))
        assert found[role].of(work) == pytest.approx(cost.of(work), rel=0.02)
        assert found[role].push_slices == pytest.approx(cost.push_slices, rel=0.05, abs=US)
        assert found[role].pull_far == pytest.approx(cost.pull_far, rel=0.05, abs=0.01 * NS)


def test_no_cost_is_below_zero_whatever_the_noise() -> None:
    some = [measured(probe, COSTS) for probe in probes()]
    noisy = [
        replace(one, processor_s={role: time_s * (0.5 + place % 3) for role, time_s in one.processor_s.items()})
        for place, one in enumerate(some)
    ]
    for cost in costs_of(noisy).values():
        assert min(cost.rounds, cost.calls, cost.push_frames, cost.pull_slices, cost.push_far) >= 0


def test_constants_come_from_probes_alone() -> None:
    found = fit([measured(probe, COSTS, 10.0) for probe in probes()], MEMORY, MEMORY, 2)
    assert found.frame_bytes == pytest.approx(MIB)
    with pytest.raises(ValueError, match="no probes"):
        fit([], MEMORY, MEMORY, 2)


def test_threads_that_ran_at_once_took_longer_than_alone() -> None:
    one = measured(Probe(64 * MIB), COSTS)
    processor_s = sum(one.processor_s.values())
    assert lone_share(replace(one, time_s=processor_s), MEMORY, 2) == 1
    both_all_the_time = replace(one, time_s=processor_s / 2)
    assert lone_share(both_all_the_time, MEMORY, 2) == pytest.approx(MEMORY.together / 2)
    both_half_of_it = replace(one, time_s=0.75 * processor_s)
    assert lone_share(both_half_of_it, MEMORY, 2) == pytest.approx((1 + MEMORY.together / 2) / 2)
    assert lone_share(both_all_the_time, replace(MEMORY, together=2.0), 2) == 1
    assert lone_share(both_all_the_time, MEMORY, 1) == 1


def test_busy_cores_slow_each_other_down_as_their_memory_does() -> None:
    assert loopback(1, MEMORY).cores == 1
    assert loopback(2, MEMORY).cores == pytest.approx(1.6)
    independent = loopback(2, replace(MEMORY, together=2.3))
    assert independent.cores == 2
    assert paper(2, 2).time_s > 1.2 * paper(2, 2, independent).time_s


def test_a_frame_of_several_arrays_is_copied_to_one_place_before_it_leaves() -> None:
    (one,) = layout_of([MIB // 2], 1, Frames()).blocks[0]
    (two,) = layout_of([MIB // 4, MIB // 4], 1, Frames()).blocks[0]
    assert (one.joined, two.joined) == (0, two.nbytes)
    costs = StepCosts(CONSTANTS, 100 * MIB)
    assert costs.filled(two) - costs.filled(replace(two, joined=0)) == pytest.approx(two.nbytes / MEMORY.copy)


def test_constants_travel_as_json() -> None:
    assert Constants.from_json(json.loads(json.dumps(CONSTANTS.as_json()))) == CONSTANTS


def test_a_step_is_applied_once_whatever_the_number_of_workers() -> None:
    block = Block(MIB, 8)
    costs = StepCosts(CONSTANTS, 100 * MIB)
    assert costs.accept(block) + costs.apply(block) == pytest.approx(costs.push(Role.SHARD, block))
    assert costs.apply(block) > MIB / MEMORY.descent
    assert costs.accept(block) >= 0


def test_a_slow_network_is_what_a_step_waits_for() -> None:
    machines = network(0.1)
    found = paper(2, 2, machines)
    assert found.bound.endswith("network card")
    assert found.time_s > sum(RESNET) * 8 / 0.1e9
    assert paper(8, 1, network(10)).bound.startswith("shard")


def test_smaller_frames_cost_more() -> None:
    assert paper(2, 2, frames=Frames(frame_bytes=128 * KIB)).time_s > 1.1 * paper(2, 2).time_s


def test_what_a_caller_does_for_a_frame_is_its_interpreters_work() -> None:
    """Who waits for a result does the IO thread's work: it counts the same whichever thread does it."""
    caller, client = COSTS[Role.CALLER], COSTS[Role.CLIENT]
    both = Cost(*(a + b for a, b in zip(astuple(caller), astuple(client), strict=True)))
    swapped = replace(CONSTANTS, costs={**COSTS, Role.CALLER: both, Role.CLIENT: Cost()})
    processes, machines = Processes(2, 2), network(10)
    assert paper(2, 2, machines).time_s == pytest.approx(
        estimate(RESNET, processes, swapped, machines, Frames()).time_s
    )


@pytest.mark.parametrize(("key_bytes", "workers", "shards"), [([], 1, 1), ([0, 0], 1, 1), ([KIB], 0, 1), ([KIB], 1, 0)])
def test_there_is_no_step_of_nothing(key_bytes: list[int], workers: int, shards: int) -> None:
    arguments = (key_bytes, Processes(workers, shards), CONSTANTS, TWO_CORES, Frames())
    with pytest.raises(ValueError, match="no step"):
        estimate(*arguments)


def test_scaling_out_ends_where_a_shard_is_what_a_step_waits_for() -> None:
    found = cells(models()[0], 10, CONSTANTS, Frames(), workers=(8, 16, 32, 64), shards=(16,))
    assert [cell.workers for cell in found] == [8, 16, 32, 64]
    last = knee(found)
    assert last is not None
    assert last.workers < 64
    after = [cell for cell in found if cell.workers > last.workers]
    assert all(cell.paper.bound.startswith("shard") for cell in after)
    assert after[-1].paper.time_s > 1.5 * last.paper.time_s


def test_what_fits_behind_the_computing_is_hidden() -> None:
    def cell(workers: int, time_s: float) -> Cell:
        return Cell(workers, 1, Estimate({"shard's interpreter": time_s}, 0.0, 1))

    row = [cell(8, 0.1), cell(16, 0.2), cell(32, 0.4)]
    assert hidden(row, 0.25) is row[1]
    assert hidden(row, 0.05) is None
    assert knee(row) is None


def test_a_prediction_is_the_peer_of_what_was_measured() -> None:
    case = Case("resnet50-2s2w-tcp", ((4,),), 2, 2, 1, 1)
    weft = [Round((0.3,), 100.0)]
    row = row_beside(Prediction(case, 0.25, "cores"), row_of(case.name, "tcp", weft, PeerRounds("x", missing="y")))
    assert (row.peer_name, row.missing) == ("prediction", None)
    assert row.ratio == pytest.approx(1.2)


def test_the_tables_of_many_machines_are_whole_on_80_columns_and_have_the_documents_unit(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for table in scale_tables(CONSTANTS, Frames()):
        Console(width=80).print(table)
    shown = capsys.readouterr().out
    assert "…" not in shown
    assert shown.count("a step's exchange on paper, ms") == shown.count("shards down, workers across") == 4
    first = next(iter(cells(models()[0], 10, CONSTANTS, Frames(), workers=(8,), shards=(1,))))
    assert f"1  {1e3 * first.paper.time_s:7.0f}".split() == shown.split("1024", 1)[1].split("─ \n")[1].split()[:2]
