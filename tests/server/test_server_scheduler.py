"""Placement: whole gangs, the oldest first, the fewest loaded, and a reason for everybody who waits."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from weft.api.agent import AgentKind
from weft_server.control.scheduler import KEPT_S, PATIENCE_S, AgentView, PendingJob, View, schedule


def worker(number: int, held: int = 0) -> AgentView:
    return AgentView(f"w{number}", AgentKind.WORKER, f"worker-{number}", number, held)


def shard(number: int, held: int = 0) -> AgentView:
    return AgentView(f"s{number}", AgentKind.SHARD, f"shard-{number}", number, held)


def job(name: str, workers: int, shards: int = 1, since: float = 0.0, project: str | None = "default") -> PendingJob:
    return PendingJob(name, workers, shards, since, project=project)


def test_a_gang_is_placed_whole_or_not_at_all() -> None:
    view = View([job("a", 3)], [worker(1), worker(2), shard(3)])
    assert schedule(view, 0).placements == ()
    assert schedule(view, 0).waiting == {
        "a": "needs 3 workers; 2 are registered, 2 are free: start 1 more "
        "(python -m weft_worker --server URL), or submit it for at most 2"
    }


def test_the_fewest_loaded_shards_are_taken() -> None:
    agents = [worker(1), shard(2, held=2), shard(3, held=0), shard(4, held=1)]
    assert schedule(View([job("a", 1, 2)], agents), 0).placements[0].shards == ("s3", "s4")


def test_a_job_gets_agents_with_the_memory_for_it_and_says_so_where_there_are_too_few() -> None:
    agents = [
        *(replace(worker(number), memory_bytes=bound) for number, bound in enumerate([10, 20, 20])),
        *(replace(shard(number), memory_bytes=bound) for number, bound in enumerate([10, 20])),
    ]
    small, large = job("small", 1), replace(job("large", 2), worker_bytes=15, shard_bytes=15)
    assert [(each.workers, each.shards) for each in schedule(View([large, small], agents), 0).placements] == [
        (("w1", "w2"), ("s1",)),
        (("w0",), ("s0",)),
    ]
    for asked, told in (replace(large, workers=3), "3 workers"), (replace(large, shards=2), "2 shards"):
        reason = schedule(View([asked], agents), 0).waiting["large"]
        assert reason.startswith(f"needs {told} that let a job have 15 bytes of memory; ")


def test_a_worker_that_holds_a_slot_is_not_free() -> None:
    decided = schedule(View([job("a", 1)], [worker(1, held=1), worker(2), shard(3)]), 0)
    assert decided.placements[0].workers == ("w2",)


def test_slots_follow_the_workers_names_whoever_registered_first() -> None:
    names = ["worker-10", "worker-2", "worker-0"]
    workers = [AgentView(name, AgentKind.WORKER, name, number, 0) for number, name in enumerate(names)]
    decided = schedule(View([job("a", 3)], [*workers, shard(9)]), 0)
    assert decided.placements[0].workers == ("worker-0", "worker-2", "worker-10")
    assert decided.placements[0].keeper == 2, "the one that has been there longest"


def test_shards_of_one_job_are_different_ones() -> None:
    decided = schedule(View([job("a", 1, 2)], [worker(1), shard(2)]), 0)
    assert decided.waiting == {
        "a": "needs 2 shards; 1 is registered: start 1 more "
        "(python -m weft_kvstore --server URL), or submit it for at most 1"
    }


def test_the_oldest_job_comes_first_and_the_next_gets_what_is_left() -> None:
    agents = [*(worker(number) for number in range(4)), shard(9)]
    decided = schedule(View([job("a", 2), job("b", 2), job("c", 1)], agents), 0)
    assert [placement.job for placement in decided.placements] == ["a", "b"]
    assert decided.waiting["c"] == "needs 1 worker; 4 are registered, 0 are free: it starts when other jobs end"


def test_younger_jobs_fill_gaps_until_the_oldest_has_waited_long_enough() -> None:
    agents = [worker(1, held=1), worker(2), shard(3)]
    jobs = [job("large", 2, since=100.0), job("small", 1, since=101.0)]
    early = schedule(View(jobs, agents), 100.0 + PATIENCE_S - 1)
    assert [placement.job for placement in early.placements] == ["small"]
    assert early.until == 100.0 + PATIENCE_S
    late = schedule(View(jobs, agents), 100.0 + PATIENCE_S)
    assert late.placements == ()
    assert late.until == 100.0 + PATIENCE_S + KEPT_S
    later = schedule(View(jobs, agents), late.until)
    assert [placement.job for placement in later.placements] == ["small"], "what it waits for may never end"
    assert later.until == late.until + KEPT_S
    assert late.waiting["small"] == "needs 1 worker; the free ones are kept for job large, whose turn is first"


def test_the_project_that_holds_the_fewest_workers_comes_first_and_of_its_jobs_the_oldest() -> None:
    many = [job(f"a{number}", 1, project="a") for number in range(20)]
    jobs = [*many, job("b0", 1, project="b"), job("b1", 1, project="b")]
    agents = [*(worker(number) for number in range(5)), shard(9)]

    def placed(held: dict[str, int]) -> list[str]:
        return [each.job for each in schedule(View(jobs, agents, held=held), 0).placements]

    assert placed({}) == ["a0", "b0", "a1", "b1", "a2"]
    assert placed({"a": 2}) == ["b0", "b1", "a0", "a1", "a2"]
    assert placed({"b": 9}) == ["a0", "a1", "a2", "a3", "a4"]
    last = schedule(View(jobs, [worker(1), shard(2)], placed={"a": 7}), 0)
    assert [each.job for each in last.placements] == ["b0"], "of equals, who was placed longest ago"


def test_what_has_run_goes_on_before_anything_begins_whoever_holds_more() -> None:
    jobs = [job("new", 1, project="b"), job("again", 1, project=None)]
    decided = schedule(View(jobs, [worker(1), shard(2)], held={"b": 0}), 0)
    assert [each.job for each in decided.placements] == ["again"]


def test_a_job_that_asks_for_more_than_is_registered_holds_nobody_up() -> None:
    decided = schedule(View([job("huge", 9, since=0.0), job("small", 1)], [worker(1), shard(2)]), 10 * PATIENCE_S)
    assert [placement.job for placement in decided.placements] == ["small"]


AGENTS = st.lists(st.tuples(st.sampled_from(list(AgentKind)), st.integers(0, 2)), max_size=12)
JOBS = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 3), st.floats(0, 200)), max_size=6)


@given(AGENTS, JOBS)
def test_no_worker_is_placed_twice_and_every_job_is_placed_or_told_why_not(
    agents: list[tuple[AgentKind, int]], jobs: list[tuple[int, int, float]]
) -> None:
    views = [
        AgentView(f"a{number}", kind, f"{kind}-{number}", number, held) for number, (kind, held) in enumerate(agents)
    ]
    pending = [job(f"j{number}", *asked) for number, asked in enumerate(jobs)]
    decided = schedule(View(pending, views), 200.0)
    busy = {view.id for view in views if view.kind is AgentKind.WORKER and view.held}
    placed = [agent for placement in decided.placements for agent in placement.workers]
    assert len(placed) == len(set(placed))
    assert not busy & set(placed)
    by_id = {each.id: each for each in pending}
    for placement in decided.placements:
        asked = by_id[placement.job]
        assert len(placement.workers) == asked.workers
        assert len(set(placement.shards)) == asked.shards
        assert 0 <= placement.keeper < asked.workers
    assert {placement.job for placement in decided.placements} | decided.waiting.keys() == by_id.keys()
    assert len(decided.placements) + len(decided.waiting) == len(pending)
