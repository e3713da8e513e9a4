"""What a job asks of the converter."""

from __future__ import annotations

from collections.abc import Mapping

from weft.api.job import JobSpec
from weft_graph.passes.draft import Options, Precision, Recompute
from weft_server.planning.rule_planning import RulePlan


def options_of(spec: JobSpec, rule: RulePlan, dims: Mapping[str, int]) -> Options:
    """The job's options; `rule` is the job's, `dims` are the sizes of a worker's batch, where choices go by them."""
    placement = dict(spec.parallelism.placement)
    return Options(
        placement=placement,
        recompute=Recompute(spec.recompute.value),
        precision=Precision(spec.precision.value),
        dims=dict(dims),
        whole_rule=rule.whole,
    )
