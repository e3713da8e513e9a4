"""Recurrent networks, convolutions over time, attention, state spaces, mixtures of experts, activations."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torch_zoo.case import Case, Example, floats, ints

VOCABULARY, TIME, WIDTH = 11, 5, 6


class Recurrent(nn.Module):
    """Tokens through a recurrent layer; logits at every place, and its last state."""

    def __init__(self, layer: nn.Module, features: int) -> None:
        super().__init__()
        self.table, self.layer, self.head = nn.Embedding(VOCABULARY, 4), layer, nn.Linear(features, VOCABULARY)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        hidden, state = self.layer(self.table(tokens))
        return self.head(hidden), state[0] if isinstance(state, tuple) else state


class AttentiveTranslator(nn.Module):
    """A GRU encoder and a decoder that attends to it (Bahdanau et al., 2014)."""

    def __init__(self) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(VOCABULARY, 4), nn.Embedding(VOCABULARY, 4)
        self.encoder = nn.GRU(4, 3, bidirectional=True, batch_first=True)
        self.decoder = nn.GRUCell(4 + 6, 6)
        self.of_state, self.of_place, self.score = nn.Linear(6, 4), nn.Linear(6, 4, bias=False), nn.Linear(4, 1)
        self.head = nn.Linear(6, VOCABULARY)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        places, _ = self.encoder(self.source(source))
        state = torch.tanh(places.mean(1))
        logits = []
        for token in self.target(target).unbind(1):
            scores = self.score(torch.tanh(self.of_state(state).unsqueeze(1) + self.of_place(places)))
            context = (F.softmax(scores, 1) * places).sum(1)
            state = self.decoder(torch.cat([token, context], 1), state)
            logits.append(self.head(state))
        return torch.stack(logits, 1)


class TemporalBlock(nn.Module):
    """Two causal dilated convolutions beside a shortcut (Bai et al., 2018)."""

    def __init__(self, inputs: int, outputs: int, dilation: int) -> None:
        super().__init__()
        self.pad = 2 * dilation
        self.conv1 = nn.Conv1d(inputs, outputs, 3, dilation=dilation)
        self.conv2 = nn.Conv1d(outputs, outputs, 3, dilation=dilation)
        self.drop = nn.Dropout(0.25)
        self.shortcut = nn.Conv1d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = self.drop(torch.relu(self.conv1(F.pad(x, (self.pad, 0)))))
        y = self.drop(torch.relu(self.conv2(F.pad(y, (self.pad, 0)))))
        return torch.relu(y + self.shortcut(x))


class WaveNet(nn.Module):
    """Gated dilated convolutions whose skips are summed (van den Oord et al., 2016)."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, 4)
        self.gates = nn.ModuleList(nn.Conv1d(4, 8, 2, dilation=2**depth) for depth in range(2))
        self.residuals = nn.ModuleList(nn.Conv1d(4, 4, 1) for _ in range(2))
        self.skips = nn.ModuleList(nn.Conv1d(4, 5, 1) for _ in range(2))
        self.head = nn.Conv1d(5, VOCABULARY, 1)

    def forward(self, tokens: Tensor) -> Tensor:
        x, skipped = self.table(tokens).transpose(1, 2), []
        for gate, residual, skip in zip(self.gates, self.residuals, self.skips, strict=True):
            value, door = gate(F.pad(x, (gate.dilation[0], 0))).chunk(2, 1)
            y = torch.tanh(value) * torch.sigmoid(door)
            skipped.append(skip(y))
            x = x + residual(y)
        return self.head(torch.relu(torch.stack(skipped).sum(0)))


class StateSpace(nn.Module):
    """A diagonal state space that is scanned step by step, gated by its input (Gu and Dao, 2023)."""

    def __init__(self, width: int = 4, states: int = 3) -> None:
        super().__init__()
        self.log_rates = nn.Parameter(torch.log(torch.arange(1.0, states + 1)).repeat(width, 1))
        self.inward, self.outward = nn.Linear(width, states), nn.Linear(width, states)
        self.step, self.gate, self.skip = (
            nn.Linear(width, width),
            nn.Linear(width, width),
            nn.Parameter(torch.ones(width)),
        )

    def forward(self, x: Tensor) -> Tensor:
        steps, rates = F.softplus(self.step(x)), -torch.exp(self.log_rates)
        kept = torch.exp(steps.unsqueeze(-1) * rates)
        added = (steps * x).unsqueeze(-1) * self.inward(x).unsqueeze(2)
        read = self.outward(x)
        state, out = torch.zeros_like(added[:, 0]), []
        for place in range(x.shape[1]):
            state = kept[:, place] * state + added[:, place]
            out.append((state * read[:, place].unsqueeze(1)).sum(-1))
        return (torch.stack(out, 1) + self.skip * x) * F.silu(self.gate(x))


class Masked(nn.Module):
    """nn.MultiheadAttention under a causal mask, a padding mask, or both; its weights are an output."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True, **options)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor, padding: Tensor) -> tuple[Tensor, Tensor]:
        causal = nn.Transformer.generate_square_subsequent_mask(x.shape[1], dtype=x.dtype)
        padding = torch.zeros(padding.shape, dtype=x.dtype).masked_fill(padding, float("-inf"))
        y, weights = self.attention(x, x, x, key_padding_mask=padding, attn_mask=causal)
        return self.norm(x + y), weights


class Attends(nn.Module):
    """scaled_dot_product_attention with what it can take."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.project, self.out, self.options = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), options

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each.unflatten(-1, (2, -1)).transpose(1, 2) for each in self.project(x).chunk(3, -1))
        return self.out(F.scaled_dot_product_attention(q, k, v, **self.options).transpose(1, 2).flatten(2))


class BiasedAttention(nn.Module):
    """Attention with a learned bias for each distance, and rotated places (Su et al., 2021)."""

    def __init__(self, heads: int = 2, size: int = 4) -> None:
        super().__init__()
        self.project = nn.Linear(WIDTH, 3 * heads * size, bias=False)
        self.bias = nn.Parameter(torch.zeros(heads, 2 * TIME - 1))
        self.out, self.heads = nn.Linear(heads * size, 2), heads
        places = torch.arange(TIME)
        self.register_buffer("distances", places[:, None] - places[None] + TIME - 1)
        self.register_buffer("angles", places[:, None] * torch.tensor([1.0, 0.25]))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.project(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        q, k = self._rotated(q), self._rotated(k)
        scores = q @ k.mT / math.sqrt(q.shape[-1]) + self.bias[:, self.distances]
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))

    def _rotated(self, x: Tensor) -> Tensor:
        even, odd = x[..., ::2], x[..., 1::2]
        cos, sin = self.angles.cos(), self.angles.sin()
        return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)


class DenseExperts(nn.Module):
    """A mixture in which every expert computes, weighted by a softmax over the best two (Shazeer et al., 2017)."""

    def __init__(self, experts: int = 4) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, experts, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 4), nn.GELU(), nn.Linear(4, WIDTH)) for _ in range(experts)
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.gate(x)
        best, chosen = logits.topk(2, -1)
        weights = torch.zeros_like(logits).scatter(-1, chosen, best.softmax(-1))
        outputs = torch.stack([expert(x) for expert in self.experts], -1)
        return (outputs * weights.unsqueeze(-2)).sum(-1), logits.softmax(-1).mean(0)


class SoftExperts(nn.Module):
    """Experts as batched matrices, all mixed by a softmax."""

    def __init__(self, experts: int = 3) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, experts)
        self.inward = nn.Parameter(torch.randn(experts, WIDTH, 4))
        self.outward = nn.Parameter(torch.randn(experts, 4, 2))

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.einsum("bi,eih->beh", x, self.inward).relu()
        return torch.einsum("beh,eho,be->bo", hidden, self.outward, self.gate(x).softmax(-1))


class RoutedExperts(nn.Module):
    """Each expert computes the samples that chose it alone: how many they are, only the data says."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, 2)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.gate(x).softmax(-1).max(-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            places = (chosen == number).nonzero().squeeze(1)
            if places.numel() > 0:
                out = out.index_add(0, places, expert(x[places]) * weights[places].unsqueeze(1))
        return out


class EarlyExit(nn.Module):
    """A branch of Python's on a number that is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.first(x))
        return self.second(x) if x.abs().mean().item() > 0.5 else x


class TransformerEncoder(nn.Module):
    """nn.TransformerEncoder under a padding mask."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.embed = nn.Linear(3, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 8, batch_first=True, **options)
        self.layers = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        return self.layers(self.embed(x), src_key_padding_mask=padding)[:, 0]


class Translator(nn.Module):
    """nn.Transformer with a causal decoder and a loss. Unless it is told, it looks whether the mask is causal."""

    def __init__(self, is_causal: bool | None = None) -> None:
        super().__init__()
        self.is_causal = is_causal
        self.table = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Parameter(torch.randn(TIME, WIDTH))
        self.body = nn.Transformer(WIDTH, 2, 1, 1, 8, dropout=0.1, batch_first=True)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        many = target.shape[1]
        mask = torch.full((many, many), float("-inf"), dtype=self.places.dtype).triu(1)
        y = self.body(
            self.table(source) + self.places,
            self.table(target) + self.places[:many],
            tgt_mask=mask,
            tgt_is_causal=self.is_causal,
        )
        return F.cross_entropy(self.head(y[:, :-1]).flatten(0, 1), target[:, 1:].flatten())


class Activations(nn.Module):
    """One activation after another, each on features of its own."""

    def __init__(self, *activations: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in activations)
        self.activations = nn.ModuleList(activations)

    def forward(self, x: Tensor) -> Tensor:
        pairs = zip(self.layers, self.activations, strict=True)
        return torch.cat([activation(layer(x)) for layer, activation in pairs], 1)


class HyperNetwork(nn.Module):
    """A network whose outputs are the weights of another one (Ha et al., 2016)."""

    def __init__(self) -> None:
        super().__init__()
        self.makes = nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 4 * 3 + 3))

    def forward(self, x: Tensor, task: Tensor) -> Tensor:
        made = self.makes(task)
        weight, bias = made[:, :12].unflatten(1, (4, 3)), made[:, 12:]
        return torch.sigmoid(torch.bmm(x.unsqueeze(1), weight).squeeze(1) + bias)


class Physics(nn.Module):
    """A field and what an equation leaves of it, by finite differences (Raissi et al., 2017)."""

    def __init__(self) -> None:
        super().__init__()
        self.field = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
        self.viscosity = nn.Parameter(torch.tensor(0.25))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        def u(dx: float, dt: float) -> Tensor:
            return self.field(torch.cat([x + dx, t + dt], 1))

        step = 0.125
        now, right, left = u(0, 0), u(step, 0), u(-step, 0)
        rest = (u(0, step) - now) / step + now * (right - left) / (2 * step)
        return (rest - self.viscosity * (right - 2 * now + left) / step**2).square().mean()


class Fourier(nn.Module):
    """Random features of coordinates, held in a buffer, under a perceptron (Tancik et al., 2020)."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("frequencies", torch.randn(2, 5))
        self.body = nn.Sequential(nn.Linear(10, 6), nn.ReLU(), nn.Linear(6, 3), nn.Sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        angles = 2 * math.pi * x @ self.frequencies
        return self.body(torch.cat([angles.sin(), angles.cos()], -1))


def _rnn(kind: type[nn.RNNBase], factor: int = 1, **options: Any) -> Callable[[], nn.Module]:
    return lambda: Recurrent(kind(4, 5, batch_first=True, **options), 5 * factor)


def _padded(batch: int = 3, width: int = WIDTH) -> Callable[[], Example]:
    return lambda: (torch.randn(batch, TIME, width), torch.arange(TIME) >= torch.tensor([[TIME], [3], [4]]))


def _two_sequences() -> Example:
    return torch.randint(0, VOCABULARY, (3, TIME)), torch.randint(0, VOCABULARY, (3, 2))


_TOKENS = ints(VOCABULARY, 3, TIME)
_STEPS = floats(3, TIME, WIDTH)

CASES = (
    Case("LSTM", "recurrent", _rnn(nn.LSTM), _TOKENS, traps=("several outputs", "integer inputs"), further=True),
    Case("RNN", "recurrent", _rnn(nn.RNN, nonlinearity="relu"), _TOKENS, traps=("several outputs",), further=True),
    Case(
        "bidirectional LSTM",
        "recurrent",
        _rnn(nn.LSTM, 2, bidirectional=True),
        _TOKENS,
        traps=("several outputs",),
        further=True,
    ),
    Case(
        "deep GRU with dropout",
        "recurrent",
        _rnn(nn.GRU, num_layers=2, dropout=0.25),
        _TOKENS,
        traps=("Dropout",),
        further=True,
    ),
    Case(
        "LSTM with projections",
        "recurrent",
        lambda: Recurrent(nn.LSTM(4, 5, proj_size=3, batch_first=True), 3),
        _TOKENS,
        r"weight_hr_l0|proj_size",
    ),
    Case(
        "attentive translator",
        "recurrent",
        AttentiveTranslator,
        _two_sequences,
        traps=("several inputs", "logits"),
        further=True,
    ),
    Case(
        "temporal block",
        "temporal conv net",
        lambda: TemporalBlock(2, 4, 2),
        floats(3, 2, 7),
        traps=("Dropout",),
    ),
    Case("WaveNet", "WaveNet", WaveNet, _TOKENS, traps=("integer inputs", "logits"), further=True),
    Case("scanned state space", "state space", StateSpace, floats(3, 3, 4)),
    Case("masked attention", "attention", Masked, _padded(), traps=("several inputs", "several outputs"), further=True),
    Case(
        "attention with dropout and extra keys",
        "attention",
        lambda: Masked(dropout=0.25, add_bias_kv=True),
        _padded(),
        traps=("Dropout",),
        further=True,
    ),
    Case("scaled dot product, causal", "attention", lambda: Attends(is_causal=True, scale=0.5), _STEPS),
    Case("biased and rotated attention", "attention", BiasedAttention, _STEPS, further=True),
    Case(
        "dense experts", "mixture of experts", DenseExperts, floats(4, WIDTH), traps=("several outputs",), further=True
    ),
    Case("soft experts", "mixture of experts", SoftExperts, floats(4, WIDTH), options={"dynamic": False}, further=True),
    Case(
        "routed experts",
        "mixture of experts",
        RoutedExperts,
        floats(4, WIDTH),
        r"(?i)data|depend",
        traps=("data-dependent",),
    ),
    Case("early exit", "perceptron", EarlyExit, floats(4, WIDTH), r"(?i)data|depend", traps=("data-dependent",)),
    Case(
        "TransformerEncoder",
        "encoder",
        lambda: TransformerEncoder(norm_first=True, activation="gelu"),
        _padded(width=3),
        further=True,
    ),
    Case(
        "Transformer",
        "encoder and decoder",
        lambda: Translator(is_causal=True),
        _two_sequences,
        traps=("Dropout", "scalar loss", "several inputs"),
        further=True,
    ),
    Case(
        "Transformer that looks at its mask",
        "encoder and decoder",
        Translator,
        _two_sequences,
        r"(?i)data-dependent",
        traps=("data-dependent",),
        further=True,
    ),
    Case(
        "activations",
        "activations",
        lambda: Activations(
            nn.PReLU(),
            nn.PReLU(4),
            nn.GELU(),
            nn.GELU("tanh"),
            nn.SiLU(),
            nn.ELU(),
            nn.Hardswish(),
            nn.Mish(),
            nn.Softplus(),
        ),
        floats(4, 4),
    ),
    Case(
        "more activations",
        "activations",
        lambda: Activations(
            nn.CELU(1.5),
            nn.SELU(),
            nn.Hardsigmoid(),
            nn.Hardtanh(),
            nn.LeakyReLU(0.25),
            nn.LogSigmoid(),
            nn.ReLU6(),
            nn.Softsign(),
            nn.Tanhshrink(),
            nn.Softshrink(0.25),
            nn.Hardshrink(0.25),
            nn.Threshold(0.25, 0.5),
        ),
        floats(4, 4),
        further=True,
    ),
    Case(
        "hypernetwork",
        "hypernetwork",
        HyperNetwork,
        lambda: (torch.randn(4, 4), torch.randn(4, 2)),
        traps=("several inputs",),
    ),
    Case(
        "physics",
        "physics-informed",
        Physics,
        lambda: {"x": torch.randn(4, 1), "t": torch.rand(4, 1)},
        traps=("dict example", "scalar loss"),
    ),
    Case("Fourier features", "physics-informed", Fourier, floats(4, 2), further=True),
)
