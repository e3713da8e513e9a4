"""What a job has trained: as its graph, cut to what is served, or in the PyTorch module that it came from."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from weft.api.job import JobSpec
from weft.collect import cut
from weft.errors import ArgumentError
from weft.model import Model
from weft.records import Array
from weft_graph.json_form import graph_from_json

_SHOWN = 8
"""Names that a message lists; of a graph's values the last."""


LOSS_MODULE: Final = "weft_loss"
"""What a loss with parameters is called within the module that `weft.fit` trains: no part of the user's module."""


def trained_model(
    spec: JobSpec, outputs: Iterable[str] | None, values: Callable[[Sequence[str]], Mapping[str, Array]]
) -> Model:
    """See `JobHandle.model`; `values` brings those of some parameters."""
    graph = graph_from_json(spec.graph)
    judged = {spec.loss, *spec.metrics.values()}
    if isinstance(outputs, str):
        outputs = (outputs,)
    wanted = tuple(outputs or (name for name in graph.outputs if name not in judged))
    if not wanted:
        made = [value for node in cut(graph, spec.loss).nodes for value in node.outputs if value not in {"", *judged}]
        last = ", ".join(made[: -_SHOWN - 1 : -1])
        raise ArgumentError(
            f"job {spec.name!r} was submitted without outputs, so say what the model is to return: outputs=[...], or "
            f"--output NAME on the command line. The last values before the loss are {last}"
        )
    served = cut(graph, *wanted)
    names = [parameter.name for parameter in served.parameters]
    return Model(served, dict(values(names)) if names else {})


def load_into(module: Any, values: Mapping[str, Array], *, strict: bool) -> None:
    """See `JobHandle.load_into`."""
    torch: Any = sys.modules.get("torch")  # who has a module has imported it
    if torch is None or not isinstance(module, torch.nn.Module):
        raise ArgumentError(f"module is a torch.nn.Module, not {type(module).__name__}")
    theirs = module.state_dict(keep_vars=True)
    shared = {id(theirs[name]) for name in values if name in theirs}  # a tied parameter has one name in the job
    missing = [name for name, _ in module.named_parameters() if id(theirs[name]) not in shared]
    unknown = [name for name in values if name not in theirs and not name.startswith(f"{LOSS_MODULE}.")]
    if strict and missing:
        raise ArgumentError(
            f"the job has no values of the module's parameters {_listed(missing)}. Either forward does not use them, "
            "or another module was submitted. strict=False leaves them as they are"
        )
    if strict and unknown:
        raise ArgumentError(
            f"the module has no parameters {_listed(unknown)}, which the job has; strict=False leaves them out"
        )
    for name in values.keys() & theirs.keys():
        if tuple(theirs[name].shape) != values[name].shape:
            raise ArgumentError(
                f"{name!r} is {[*theirs[name].shape]} in the module and {[*values[name].shape]} in the job"
            )
    with torch.no_grad():
        for name, value in values.items():
            if name in theirs:
                # torch has no word for NumPy's bfloat16
                plain = value if value.dtype.isbuiltin == 1 else value.astype("float32")
                theirs[name].copy_(torch.tensor(plain))


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(map(repr, names[:_SHOWN])) + more
