"""Writes `trained_decoder.*`: a decoder that gives logits, with its weights, tokens, and what PyTorch's own loop gives.

Run it with a Python that has torch, onnx and onnxscript: `python tests/torch_models/make_decoder.py`.
"""

from __future__ import annotations

import warnings

import numpy as np
import torch
import torch.nn.functional as F
from make import HERE
from networks import Decoder
from torch import Tensor, nn

VOCABULARY, TOKENS, WIDTH, HEADS, DEPTH = 64, 16, 32, 4, 2
ROWS, BATCH, STEPS = 160, 16, 50
RATE = 1e-2


class Logits(nn.Module):
    """The decoder without its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.decoder = Decoder(VOCABULARY, TOKENS, WIDTH, HEADS, DEPTH)
        for embedding in (self.decoder.token, self.decoder.position):
            nn.init.normal_(embedding.weight, std=0.1)  # they are the last layer's weights too

    def forward(self, tokens: Tensor) -> Tensor:
        return self.decoder.logits(tokens)


def texts() -> np.ndarray:
    """(rows, tokens + 1): each token is three times the one before and 1, or another one once in ten."""
    draws = np.random.default_rng(0)
    found = draws.integers(0, VOCABULARY, (ROWS, TOKENS + 1))
    for place in range(1, TOKENS + 1):
        follows = draws.random(ROWS) > 0.1
        found[:, place] = np.where(follows, (3 * found[:, place - 1] + 1) % VOCABULARY, found[:, place])
    return found


def exported(module: nn.Module, tokens: Tensor) -> bytes:
    program = torch.onnx.export(
        module.train(),
        (tokens[:3],),
        input_names=["tokens"],
        output_names=["logits"],
        dynamo=True,
        optimize=False,
        dynamic_shapes=({0: torch.export.Dim("batch", min=2, max=4096)},),
        verbose=False,
    )
    model = program.model_proto
    for node in model.graph.node:
        node.ClearField("metadata_props")
        node.ClearField("doc_string")
    for value in (*model.graph.input, *model.graph.output):
        value.ClearField("metadata_props")
    model.graph.ClearField("value_info")
    held: bytes = model.SerializeToString()
    return held


def trained(module: nn.Module, tokens: Tensor, labels: Tensor) -> list[float]:
    """The loss of each step, before its update; batches in the order of the rows."""
    rule = torch.optim.Adam(module.parameters(), lr=RATE)
    losses = []
    for step in range(STEPS):
        start = step * BATCH % ROWS
        batch = slice(start, start + BATCH)
        loss = F.cross_entropy(module(tokens[batch]).flatten(0, 1), labels[batch].flatten())
        rule.zero_grad()
        loss.backward()
        rule.step()
        losses.append(loss.item())
    return losses


def main() -> None:
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    module = Logits()
    rows = torch.from_numpy(texts())
    tokens, labels = rows[:, :-1].contiguous(), rows[:, 1:].contiguous()
    (HERE / "trained_decoder.onnx").write_bytes(exported(module, tokens))
    losses = trained(module, tokens, labels)
    with torch.no_grad():
        logits = module(tokens[:BATCH]).numpy()
    held = {"tokens": tokens.numpy(), "labels": labels.numpy(), "losses": np.asarray(losses), "logits": logits}
    np.savez(HERE / "trained_decoder.npz", **held)
    print(losses[0], losses[-1])


if __name__ == "__main__":
    main()
