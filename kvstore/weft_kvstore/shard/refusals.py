"""Whether what a client asks for exceeds the quotas of a shard. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from weft_kvstore.merging.pull_wait import PullWait
from weft_kvstore.quotas import Holds
from weft_kvstore.shard.account import Ledger
from weft_kvstore.shard.job_shard import JobShard
from weft_kvstore.wire.push_run import Run


def push_refusal(ledger: Ledger, shard: JobShard, runs: Sequence[Run], nbytes: int) -> str | None:
    """Why a frame of so many bytes cannot be taken in; None where it can. Raises ProtocolError for rows that are none.

    A frame is taken in as one: what is kept of it keeps all of its memory. Which rows are new is looked up only where
    it matters.
    """
    for exact in (False, True):
        grows = [shard.may_grow(run, exact=exact) for run in runs]
        reason = ledger.refusal(shard.account, sum(grows, Holds(nbytes)))
        if reason is None or not any(grows):
            return reason
    return reason


def answer_refusal(ledger: Ledger, shard: JobShard, wait: PullWait) -> str | None:
    """Why a pull of rows cannot be answered: its answer is a copy of them."""
    if ledger.is_open:
        return None
    return ledger.refusal(shard.account, Holds(shard.pulls.answer_bytes(wait)))
