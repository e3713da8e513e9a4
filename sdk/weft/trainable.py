"""A model with the loss that it trains by: what can be submitted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from weft.evaluation import Feeds, evaluate
from weft.model_report import report
from weft.read_expressions import expressions
from weft.records import Array
from weft_graph.ir import Graph
from weft_graph.losses.with_loss import WithLoss

if TYPE_CHECKING:
    from weft.api.optimizer import OptimizerSpec


@dataclass(frozen=True, eq=False, repr=False)
class Trainable:
    """A graph with its loss and metrics, and the first values of its parameters; see `Model.with_loss`.

    `weft.submit`, `Client.submit` and `weft.job_spec` take it where they take a loss.
    """

    made: WithLoss
    values: Mapping[str, Array]
    warnings: tuple[str, ...] = ()
    """What the model's are, then sentences about the loss: what it is computed from, and what does not train."""
    own_outputs: tuple[str, ...] = ()
    """The model's outputs as they were."""
    optimizer: OptimizerSpec | None = None
    """What it trains by unless a job says it otherwise."""
    reasons: Mapping[str, str] = field(default_factory=dict)
    proof: str = ""
    """As the model's."""

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
    def targets(self) -> tuple[str, ...]:
        """The inputs that losses compare with; none where the model computes its loss itself."""
        return self.made.targets

    def evaluate(self, feeds: Feeds, *, seed: int = 0, training: bool = False) -> dict[str, Array]:
        """Loss, metrics and outputs by name, here and now; see `Expression.eval`, which says what is raised."""
        known = expressions(self.graph, self.values)
        names = {self.loss: "loss", **{value: name for name, value in self.metrics.items()}}
        outputs = [known[name] for name in self.graph.outputs]
        found = evaluate(outputs, feeds, parameters=self.values, seed=seed, training=training)
        return {names.get(name, name): value for name, value in zip(self.graph.outputs, found, strict=True)}

    def __repr__(self) -> str:
        metrics = ", ".join(self.metrics)
        return f"<Trainable {self.graph.name}: loss {self.loss}{f', metrics {metrics}' if metrics else ''}>"

    def __str__(self) -> str:
        """What `Model` says, of the graph with its loss."""
        return report(self.graph, self.warnings, self.reasons, self.proof)
