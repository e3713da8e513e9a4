"""Programs: what the converter makes of a graph for one role, and the parts of their names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from weft_graph.ir import Constant, Initializer, Input, Node
from weft_graph.names import AGAIN
from weft_graph.types import TensorType

LOSS = "loss"
"""The name under which every program gives the loss."""

LOSS_SCALE = "weft.loss_scale"
"""The train program's own input, a scalar of the loss's dtype: (samples of this worker) / (samples of the step). It is
what the differentiation starts from, so that the store's sum is the gradient of the mean over the global batch."""


class Role(StrEnum):
    """What a program is for: a step of training, or a look at held-out data with running statistics and no dropout."""

    TRAIN = "train"
    EVALUATE = "evaluate"


class Update(StrEnum):
    """How a shard updates a key: by the job's rule on the summed gradient, by the mean over contributing slots, or not
    at all: the value is the merged gradient of the last step, and the workers update (`K/grad`)."""

    RULE = "rule"
    MEAN = "mean"
    GRADIENT = "gradient"


@dataclass(frozen=True, slots=True)
class KeyPlan:
    """A parameter as the store sees it. `priority` 0 is the most urgent: the order of first use in the forward pass.

    `rows`: a table, which is fetched and pushed by rows and never whole. `dense_because`: why a key that some node
    reads by rows is no table all the same, for people; empty for every other key. `lazy_update`: whether the rule
    passes by the rows of a table that a step does not touch.
    """

    key: str
    type: TensorType
    initializer: Initializer
    update: Update
    priority: int
    rows: bool = False
    dense_because: str = ""
    lazy_update: bool = True


@dataclass(frozen=True, slots=True)
class Program:
    """Nodes in runnable order. `types` has every value, with symbolic dimensions where the data decides them.

    `outputs` maps the names that the job uses (`loss`, metric names) to values.
    """

    role: Role
    inputs: tuple[Input, ...]
    constants: tuple[Constant, ...]
    nodes: tuple[Node, ...]
    outputs: Mapping[str, str]
    types: Mapping[str, TensorType]


@dataclass(frozen=True, slots=True)
class Programs:
    """Everything that the converter makes of one submitted graph."""

    train: Program
    evaluate: Program
    keys: tuple[KeyPlan, ...]


# --- The two parts of a training step: forward, and backward, where the loss's scale flows back -----------------------


def scaled_nodes(nodes: Iterable[Node]) -> frozenset[str]:
    """Names of the nodes, in runnable order, that depend on the loss's scale: what cannot run before it is there."""
    scaled, found = {LOSS_SCALE}, set()
    for node in nodes:
        if any(name in scaled for name in node.inputs):
            found.add(node.name)
            scaled.update(filter(None, node.outputs))
    return frozenset(found)


def parts_of(nodes: Sequence[Node]) -> tuple[Sequence[Node], Sequence[Node]]:
    """Nodes in the order they run in, as (forward, backward); an evaluation's are all forward.

    The backward part begins with the first node that depends on the loss's scale, or is computed again for one that
    does. What runs later is in it too: copies of forward nodes, and a user's metric for which there was time.
    """
    scaled = scaled_nodes(nodes)
    first = (index for index, node in enumerate(nodes) if node.name in scaled or node.name.startswith(AGAIN))
    begin = next(first, len(nodes))
    return nodes[:begin], nodes[begin:]
