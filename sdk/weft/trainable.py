"""A model with the loss that it trains by: what can be submitted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Unpack

from weft.records import Array
from weft_graph.ir import Graph
from weft_graph.losses.with_loss import WithLoss

if TYPE_CHECKING:
    from weft.api.job import JobSpec
    from weft.client import Client
    from weft.evaluation import Feeds
    from weft.job_arguments import JobArguments
    from weft.job_handle import JobHandle


@dataclass(frozen=True, eq=False, repr=False)
class Trainable:
    """A graph with its loss and metrics, and the first values of its parameters; see `Model.with_loss`."""

    made: WithLoss
    values: Mapping[str, Array]
    warnings: tuple[str, ...] = ()
    own_outputs: tuple[str, ...] = ()
    """The model's outputs as they were."""

    @property
    def graph(self) -> Graph:
        """The loss first, then the metrics, then the model's own outputs."""
        return self.made.graph

    @property
    def loss(self) -> str:
        """The graph's output that is made small."""
        return self.made.loss

    @property
    def metrics(self) -> Mapping[str, str]:
        """Metric -> the graph's output."""
        return self.made.metrics

    @property
    def target(self) -> str:
        """The input that the loss compares with; empty where the model computes its loss itself."""
        return self.made.target

    def evaluate(self, feeds: Feeds, *, seed: int = 0, training: bool = False) -> dict[str, Array]:
        """Loss, metrics and outputs by name, here and now."""
        from weft.model import Model  # which imports this

        whole = Model(self.graph, self.values).evaluate(feeds, seed=seed, training=training)
        names = {self.loss: "loss", **{value: name for name, value in self.metrics.items()}}
        return {names.get(name, name): value for name, value in whole.items()}

    def job_spec(self, **arguments: Unpack[JobArguments]) -> JobSpec:
        """The job without its first values, as `weft.job_spec`; `submit` sends them along."""
        from weft.submission import job_spec

        return job_spec(self, **arguments)

    def submit(self, client: Client | None = None, **arguments: Unpack[JobArguments]) -> JobHandle:
        """`client.submit(self, ...)`; the client is that of `WEFT_URL` where left out, which stays open."""
        from weft.client import Client

        return (client or Client()).submit(self, **arguments)

    def __repr__(self) -> str:
        metrics = ", ".join(self.metrics)
        return f"<Trainable {self.graph.name}: loss {self.loss}{f', metrics {metrics}' if metrics else ''}>"
