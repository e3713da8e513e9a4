"""A model that came from a file or from PyTorch: its graph, its parameters' values, what to do with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from weft.errors import ArgumentError
from weft.evaluation import evaluate
from weft.expression import Expression
from weft.model_report import paths, report
from weft.parameter_file import refuse_parameter_file
from weft.read_expressions import expressions
from weft.records import Array
from weft.trainable import Trainable
from weft_graph.errors import GraphRefusedError
from weft_graph.ir import UNREACHED, Graph, Input, Parameter
from weft_graph.losses.comparison import Loss
from weft_graph.losses.with_loss import WithLoss, with_loss

if TYPE_CHECKING:
    import os

    from weft.api.optimizer import OptimizerSpec
    from weft.evaluation import Feeds

MOST_SHOWN = 8
"""Parameters that a warning names."""


@dataclass(frozen=True, eq=False, repr=False)
class Model:
    """A graph with initial values of its parameters. Immutable; `print(model)` shows what is in it.

    `model["logits"]` is a value as an expression, for your own losses and metrics; `with_loss` adds a common loss.
    `warnings` says what could not be read exactly.
    """

    graph: Graph
    values: Mapping[str, Array]
    warnings: tuple[str, ...] = ()
    sequences: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Outputs of the file that are sequences, as the outputs that are their items."""
    optimizer: OptimizerSpec | None = None
    """What the file trains it by, where it has its own optimizer: jobs of the model take it unless they say
    `optimizer`."""
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Why a parameter does not train, or what shares it, and why an array is a constant; a few words each."""
    proof: str = ""
    """What of it was compared with the PyTorch module that it was made from; empty where nothing was."""

    @property
    def name(self) -> str:
        return self.graph.name

    @property
    def inputs(self) -> dict[str, Input]:
        """By name, with their types."""
        return {input_.name: input_ for input_ in self.graph.inputs}

    @property
    def parameters(self) -> dict[str, Parameter]:
        """By name; those that are not `trainable` are kept as they are."""
        return {parameter.name: parameter for parameter in self.graph.parameters}

    @property
    def outputs(self) -> dict[str, Expression]:
        """By name, as expressions."""
        return {name: self[name] for name in self.graph.outputs}

    @cached_property
    def _expressions(self) -> dict[str, Expression]:
        return expressions(self.graph, self.values)

    def __getitem__(self, name: str) -> Expression:
        """The value of that name, of any node, input or parameter. Raises KeyError, which lists the outputs."""
        try:
            return self._expressions[name]
        except KeyError:
            outputs = ", ".join(map(repr, self.graph.outputs))
            raise KeyError(f"the model has no value {name!r}; its outputs are {outputs}") from None

    def __contains__(self, name: object) -> bool:
        return name in self._expressions

    def __iter__(self) -> Iterator[str]:
        """The outputs' names."""
        return iter(self.graph.outputs)

    def evaluate(
        self,
        feeds: Feeds | None = None,
        *,
        parameters: Mapping[str, Any] | None = None,
        seed: int = 0,
        training: bool = False,
    ) -> dict[str, Array]:
        """Compute the outputs, by name, on this machine; raises what `Expression.eval` raises.

        `parameters` replaces some or all of the model's values.
        """
        outputs = self.outputs
        kept = {**self.values, **parameters} if parameters else self.values
        found = evaluate(
            tuple(outputs.values()), {} if feeds is None else feeds, parameters=kept, seed=seed, training=training
        )
        return dict(zip(outputs, found, strict=True))

    def with_values(self, values: Mapping[str, Any]) -> Model:
        """The same model with other parameters, such as `JobHandle.values()` or `weft.load`.

        Raises GraphRefusedError for an unknown name or another shape.
        """
        known = self.parameters
        for name, value in values.items():
            if name not in known:
                raise GraphRefusedError(f"the model has no parameter {name!r}", node=name)
            if value.shape != known[name].type.static_shape or value.dtype != known[name].type.dtype.numpy:
                raise GraphRefusedError(
                    f"parameter {name!r} is {known[name].type}, given {value.dtype} {value.shape}", node=name
                )
        return replace(self, values={**self.values, **values})

    def with_loss(
        self,
        loss: str | Loss | Sequence[str | Loss],
        *,
        output: str = "",
        target: str = "",
        classes_axis: int | None = None,
        ignore_index: int | None = None,
        metrics: str | Sequence[str] = (),
    ) -> Trainable:
        """Add a loss, or the weighted sum of several, so that the model can be trained.

        A loss is `cross_entropy` (of logits), `log_loss` (the same of probabilities), `nll` (of log-probabilities),
        `mse`, `l1`, `bce_with_logits`, `bce` (of probabilities), or the name of an output that is the loss already.
        Where the output is made by a Softmax or Sigmoid, the loss is computed from the logits before it, also
        `cross_entropy` and `bce_with_logits`, and `warnings` say so.

        The loss compares `output`, the only one where left out, or any value inside the model, with the input
        `target`, which is added: `labels`, int64, without the axis of the classes; else `target`, of the output's type
        and shape. Parameters that do not lead to it do not train, and `warnings` name them. Classes are on axis 1 where
        the output has four dimensions or more, (batch, classes, height, width), and on the last axis else,
        (batch, classes) and (batch, positions, classes); `classes_axis` says it otherwise. Targets that are
        `ignore_index` do not count; each worker then takes the mean over its own.

        Several losses are a list of `weft.Loss`, each with its own output, target and weight. Each is a metric too,
        under the name of its output and its own: `logits_cross_entropy`.

        `metrics` are `accuracy`, losses, or outputs that are scalars. With several losses a metric is of each output
        that it fits; where these are several, the output's name comes before the metric's.

        Raises GraphRefusedError and its kin, which say what there is, and ArgumentError.
        """
        if isinstance(loss, str):
            losses: Sequence[Loss] = (Loss(loss, output, target, 1.0, classes_axis, ignore_index),)
        elif output or target or classes_axis is not None or ignore_index is not None:
            raise ArgumentError("output, target, classes_axis and ignore_index are said in each weft.Loss of a list")
        else:
            given = (loss,) if isinstance(loss, Loss) else tuple(loss)
            losses = [each if isinstance(each, Loss) else Loss(each) for each in given]
        made = with_loss(self.graph, losses, (metrics,) if isinstance(metrics, str) else tuple(metrics))
        trained = {each.name: each.trainable for each in made.graph.parameters}
        idle = {name: "no loss depends on it" for name, was in self.parameters.items() if was.trainable > trained[name]}
        return Trainable(
            made,
            self.values,
            (*self.warnings, *made.notes, *self._unreached(made)),
            self.graph.outputs,
            self.optimizer,
            {**self.reasons, **idle},
            self.proof,
        )

    def _unreached(self, made: WithLoss) -> Iterator[str]:
        """A sentence about parameters that the loss depends on, and gives no gradient."""
        reached = paths(replace(made.graph, outputs=(made.loss,)))
        names = [
            each.name
            for each in made.graph.parameters
            if (each.trainable and each.name not in reached) or self.reasons.get(each.name) == UNREACHED
        ]
        if names:
            more = f" and {len(names) - MOST_SHOWN} more" if len(names) > MOST_SHOWN else ""
            shown = ", ".join(map(repr, names[:MOST_SHOWN]))
            yield f"no gradient reaches parameters, as behind a detach(): {shown}{more}"

    def export_onnx(self, path: str | os.PathLike[str], *, opset: int = 0, training: bool = False) -> None:
        """Write the model with its values to an ONNX file for inference. `training` keeps BatchNorm and Dropout
        in training mode. Raises OnnxError, ArgumentError for a name that ends in .safetensors, OSError.
        """
        refuse_parameter_file(path, "safetensors.numpy.save_file(dict(model.values), path)")
        from weft.onnx_package import onnx_form

        onnx_form("weft_graph.onnx_form.writer").write_file(
            path,
            self.graph,
            self.values,
            onnx_form("weft_graph.onnx_form.writer").WriteOptions(opset=opset, training=training),
        )

    def __repr__(self) -> str:
        size = f"{len(self.graph.nodes)} nodes, {len(self.graph.parameters)} parameters"
        return f"<Model {self.name}: {size}, outputs {', '.join(self.graph.outputs)}>"

    def __str__(self) -> str:
        """Inputs, outputs, parameters, constants, operators, what cannot train, warnings; a line each."""
        return report(self.graph, self.warnings, self.reasons, self.proof)
