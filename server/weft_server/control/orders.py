"""What an agent is told of its place in a job."""

from __future__ import annotations

from collections.abc import Sequence

from weft.api.agent import LOST_AFTER_S, AgentKind, Allocation, ShardAllocation, Snapshot, WorkerAllocation
from weft.api.store import StoreSpec
from weft_server.control.leases import Lease
from weft_server.control.memory import JobKeys
from weft_server.planning.plan import JobPlan


def allocation_of(
    lease: Lease,
    plan: JobPlan,
    store: StoreSpec,
    *,
    keeper: bool,
    given: Sequence[str] = (),
    snapshot: Snapshot | None = None,
    lost_after_s: float = LOST_AFTER_S,
    last_snapshot: str | None = None,
) -> Allocation:
    """The lease as its agent's orders hold it. `given` are parameters whose first values the keeper sets; the job goes
    on from a `snapshot`, where there is one. `last_snapshot`: where a worker writes what it alone holds after the last
    step. The job's processes wait for a silent one of them for `lost_after_s`."""
    if lease.kind is AgentKind.SHARD:
        return ShardAllocation(
            id=lease.id,
            term=lease.term,
            job=lease.job,
            shard=lease.place,
            store=store,
            snapshot=snapshot,
            keep_previous=plan.hands_slots_over,
            lost_after_s=lost_after_s,
            trace=plan.traced,
        )
    return WorkerAllocation(
        id=lease.id,
        term=lease.term,
        incarnation=lease.incarnation,
        job=lease.job,
        slot=lease.place,
        programs_sha256=plan.programs_sha256,
        data=plan.data,
        seed=plan.seed,
        steps=plan.steps,
        evaluate_every=plan.evaluate_every,
        keeper=keeper,
        store=store,
        given=list(given),
        evaluate_average=plan.evaluate_average,
        accumulate=plan.accumulate,
        keep_state=plan.keep_state,
        allow_tf32=plan.allow_tf32,
        snapshot=snapshot,
        lost_after_s=lost_after_s,
        content=plan.content,
        last_snapshot=last_snapshot,
        trace=plan.traced,
    )


def with_keys(allocation: Allocation, keys: JobKeys) -> Allocation:
    """The same with the job's CURVE keys: a shard is told its own secret, a worker the workers'."""
    if isinstance(allocation, ShardAllocation):
        shown = {"curve": keys.shards[allocation.shard], "curve_clients": [keys.workers.public]}
        return allocation.model_copy(update=shown)
    return allocation.model_copy(update={"curve": keys.workers})
