"""Writes the fixtures beside it: each network's exported graph, without its weights, and what PyTorch's autograd gives.

Run it with a Python that has torch, onnx and onnxscript: `python tests/torch_models/make.py [name ...]`.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path

import numpy as np
import onnx
import torch
from networks import NETWORKS, Network
from torch import nn
from values import given, parameter, projected

HERE = Path(__file__).parent


def inputs_of(name: str, network: Network, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Example inputs, the same for every element type."""
    tensors = {key: torch.from_numpy(given(name, key, *what)) for key, what in network.inputs.items()}
    return {key: value.to(dtype) if value.is_floating_point() else value for key, value in tensors.items()}


def filled(network: Network, dtype: torch.dtype) -> nn.Module:
    """The network in training mode, its parameters by name."""
    module = network.make().to(dtype).train()
    with torch.no_grad():
        for name, value in module.named_parameters():
            value.copy_(torch.from_numpy(parameter(name, tuple(value.shape))))
    return module


def gradients(name: str, network: Network, dtype: torch.dtype) -> tuple[float, dict[str, np.ndarray]]:
    module = filled(network, dtype)
    loss = module(**inputs_of(name, network, dtype))
    loss.backward()
    return loss.item(), {key: value.grad.double().numpy() for key, value in module.named_parameters()}


def exported(name: str, network: Network, dtype: torch.dtype) -> onnx.ModelProto:
    """The graph as torch exports it for training, less the weights' bytes and what is said about the source."""
    batch = torch.export.Dim("batch", min=2, max=4096)
    inputs = inputs_of(name, network, dtype)
    program = torch.onnx.export(
        filled(network, dtype),
        kwargs=inputs,
        dynamo=True,
        optimize=False,
        dynamic_shapes={key: {0: batch} for key in inputs},
        verbose=False,
    )
    model = program.model_proto
    held = filled(network, dtype).state_dict()
    for tensor in model.graph.initializer:
        if tensor.name in held:
            tensor.ClearField("raw_data")
    for node in model.graph.node:
        node.ClearField("metadata_props")
        node.ClearField("doc_string")
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        value.ClearField("metadata_props")
    model.graph.ClearField("value_info")
    return model


def aliases(network: Network) -> dict[str, str]:
    """Other names of tied weights: the exporter may keep any of them."""
    names: dict[int, str] = {}
    module = network.make()
    return {
        key: names[id(value)]
        for key, value in module.named_parameters(remove_duplicate=False)
        if names.setdefault(id(value), key) != key
    }


def reference(name: str, network: Network) -> dict[str, object]:
    """The loss, and of each parameter's gradient its norm and projections in float64, and float32's relative error."""
    loss, exact = gradients(name, network, torch.float64)
    _, single = gradients(name, network, torch.float32)
    return {
        "source": f"PyTorch {torch.__version__}, CPU",
        "loss": loss,
        "gradients": {
            key: {
                "norm": float(np.linalg.norm(value)),
                "projections": projected(key, value),
                "float32_error": float(np.linalg.norm(single[key] - value) / max(np.linalg.norm(value), 1e-300)),
            }
            for key, value in exact.items()
        },
    }


def main() -> None:
    warnings.simplefilter("ignore")
    for name in sys.argv[1:] or NETWORKS:
        network = NETWORKS[name]
        torch.manual_seed(0)
        for dtype in (torch.float32, torch.float64):
            model = exported(name, network, dtype)
            (HERE / f"{name}.{str(dtype).removeprefix('torch.')}.onnx").write_bytes(model.SerializeToString())
        document = {"inputs": network.inputs, "aliases": aliases(network), **reference(name, network)}
        (HERE / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n")
        print(name, "written", flush=True)


if __name__ == "__main__":
    main()
