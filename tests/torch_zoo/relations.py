"""Networks over graphs and sets: messages are gathered along edges and joined at nodes."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torch_zoo.case import Case, Example

NODES, EDGES, WIDTH = 6, 11, 4


class IndexAdd(nn.Module):
    """Sums of messages by `index_add` (graph isomorphism network, Xu et al., 2018)."""

    def __init__(self) -> None:
        super().__init__()
        self.eps = nn.Parameter(torch.zeros(1))
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 8), nn.ReLU(), nn.Linear(8, 3))

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        summed = torch.zeros_like(x).index_add(0, edges[1], x[edges[0]])
        return self.mlp((1 + self.eps) * x + summed)


class ScatterAdd(nn.Module):
    """Messages of nodes and edges, summed by `scatter_add`, updated by a gated unit (Gilmer et al., 2017)."""

    def __init__(self) -> None:
        super().__init__()
        self.message = nn.Linear(WIDTH + 2, WIDTH)
        self.update = nn.GRUCell(WIDTH, WIDTH)

    def forward(self, x: Tensor, edges: Tensor, features: Tensor) -> Tensor:
        for _ in range(2):
            messages = torch.relu(self.message(torch.cat([x[edges[0]], features], 1)))
            to = edges[1].unsqueeze(1).expand(-1, WIDTH)
            x = self.update(torch.zeros_like(x).scatter_add(0, to, messages), x)
        return x


class ScatterMean(nn.Module):
    """Means of neighbours by `scatter_reduce`, beside the node itself (GraphSAGE, Hamilton et al., 2017)."""

    def __init__(self) -> None:
        super().__init__()
        self.near, self.own = nn.Linear(WIDTH, 3, bias=False), nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        to = edges[1].unsqueeze(1).expand(-1, WIDTH)
        near = torch.tanh(x).scatter_reduce(0, to, x[edges[0]], "mean", include_self=True)
        return F.normalize(self.near(near) + self.own(x), dim=1)


class LearnedMean(nn.Module):
    """A mean over messages that are learned, so that gradients go through `scatter_reduce` to parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.message = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        messages = torch.tanh(self.message(x[edges[0]]))
        to = edges[1].unsqueeze(1).expand(-1, 3)
        return x.new_zeros(x.shape[0], 3).scatter_reduce(0, to, messages, "mean", include_self=False)


class ScatterMax(nn.Module):
    """Maxima over neighbours by `scatter_reduce` (PointNet-like)."""

    def __init__(self) -> None:
        super().__init__()
        self.message, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        messages = self.message(x[edges[0]])
        to = edges[1].unsqueeze(1).expand(-1, WIDTH)
        return self.head(x.scatter_reduce(0, to, messages, "amax", include_self=True))


class GraphAttention(nn.Module):
    """A softmax over each node's incoming edges, made of scatters (Velickovic et al., 2017)."""

    def __init__(self, heads: int = 2) -> None:
        super().__init__()
        self.project = nn.Linear(WIDTH, heads * 3, bias=False)
        self.of_source = nn.Parameter(torch.randn(heads, 3))
        self.of_target = nn.Parameter(torch.randn(heads, 3))
        self.heads = heads

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        h = self.project(x).view(-1, self.heads, 3)
        scores = (h * self.of_source).sum(-1)[edges[0]] + (h * self.of_target).sum(-1)[edges[1]]
        weights = torch.exp(F.leaky_relu(scores, 0.2))
        total = x.new_zeros(x.shape[0], self.heads).index_add(0, edges[1], weights)
        messages = (weights / total[edges[1]]).unsqueeze(-1) * h[edges[0]]
        return F.elu(torch.zeros_like(h).index_add(0, edges[1], messages)).flatten(1)


class DeepSets(nn.Module):
    """A sum over a masked set between two perceptrons (Zaheer et al., 2017)."""

    def __init__(self) -> None:
        super().__init__()
        self.each = nn.Sequential(nn.Linear(3, 6), nn.Softplus())
        self.whole = nn.Linear(12, 2)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        each = self.each(x)
        kept = mask.unsqueeze(-1)
        summed = each.masked_fill(~kept, 0.0).sum(1)
        largest = each.masked_fill(~kept, float("-inf")).amax(1)
        return self.whole(torch.cat([summed, largest], 1))


class SetTransformer(nn.Module):
    """Induced attention over a set, pooled by a learned seed (Lee et al., 2018)."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.embed = nn.Linear(3, width)
        self.induced = nn.Parameter(torch.randn(1, 2, width))
        self.seed = nn.Parameter(torch.randn(1, 1, width))
        self.inward, self.outward, self.pool = (nn.MultiheadAttention(width, 2, batch_first=True) for _ in range(3))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        few = self.induced.expand(x.shape[0], -1, -1)
        few = few + self.inward(few, x, x, need_weights=False)[0]
        x = self.norm(x + self.outward(x, few, few, need_weights=False)[0])
        seed = self.seed.expand(x.shape[0], -1, -1)
        return self.pool(seed, x, x)[0].squeeze(1)


class PointNet(nn.Module):
    """A perceptron for each point, a maximum over all of them (Qi et al., 2016)."""

    def __init__(self) -> None:
        super().__init__()
        self.points = nn.Sequential(nn.Conv1d(3, 6, 1), nn.BatchNorm1d(6), nn.ReLU(), nn.Conv1d(6, 8, 1))
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return F.log_softmax(self.head(self.points(x).max(2).values), -1)


def edges() -> Tensor:
    """Every node but the last one is the target of an edge."""
    targets = torch.cat([torch.arange(NODES - 1), torch.randint(0, NODES - 1, (EDGES - NODES + 1,))])
    return torch.stack([torch.randint(0, NODES, (EDGES,)), targets])


def _graph() -> Example:
    return torch.randn(NODES, WIDTH), edges()


def _graph_with_features() -> Example:
    return torch.randn(NODES, WIDTH), edges(), torch.randn(EDGES, 2)


def _masked_set() -> Example:
    return torch.randn(3, 5, 3), torch.arange(5) < torch.tensor([[5], [3], [1]])


_STATIC = {"dynamic": False}
_ANY_GRAPH = {"dynamic": ({0: torch.export.Dim("nodes")}, {1: torch.export.Dim("edges")})}

CASES = (
    Case("messages by index_add", "graph network", IndexAdd, _graph, options=_ANY_GRAPH, traps=("several inputs",)),
    Case(
        "messages by scatter_add",
        "graph network",
        ScatterAdd,
        _graph_with_features,
        options=_STATIC,
        traps=("several inputs",),
        further=True,
    ),
    Case(
        "scatter_reduce mean with itself",
        "graph network",
        ScatterMean,
        _graph,
        options=_STATIC,
        traps=("scatter_reduce mean",),
    ),
    Case(
        "scatter_reduce mean of learned messages",
        "graph network",
        LearnedMean,
        _graph,
        options=_STATIC,
        traps=("scatter_reduce mean",),
    ),
    Case("scatter_reduce amax", "graph network", ScatterMax, _graph, options=_STATIC, further=True),
    Case("graph attention", "graph network", GraphAttention, _graph, options=_ANY_GRAPH),
    Case("DeepSets", "set network", DeepSets, _masked_set, traps=("several inputs",)),
    Case("set transformer", "set network", SetTransformer, lambda: (torch.randn(3, 5, 3),), further=True),
    Case(
        "PointNet",
        "point cloud",
        PointNet,
        lambda: (torch.randn(3, 3, 7),),
        traps=("BatchNorm training",),
        further=True,
    ),
)
