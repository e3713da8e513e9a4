"""Whether a graph is the PyTorch module that it was made from: outputs and gradients of both, compared on the example.

`torch_run` has what the module computes in training, forward and backward by autograd, and in `eval()`, forward alone;
the graph does the same with the installed evaluator, without randomness too. Outputs are compared at other numbers of
samples as well, where the batch may have any.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import entry_points
from typing import Any, Final

import numpy as np

from weft.errors import ModuleRefusedError
from weft.evaluation import run_graph
from weft.model_report import paths
from weft.records import Array
from weft.torch_run import (
    HALF,
    Example,
    Ran,
    Run,
    array_of,
    kept_buffers,
    refusing,
    run_once,
    tensors_of,
    weights_of,
    without_randomness,
)
from weft_graph.errors import GraphError
from weft_graph.infer import infer
from weft_graph.ir import ONNX_DOMAIN, Constant, Graph, Input, Node
from weft_graph.onnx_dtypes import NUMBER_OF_DTYPE
from weft_graph.passes.inference_mode import to_inference
from weft_graph.types import BATCH, DType, TensorType, array_type

GRADIENTS: Final = "weft.gradients"
"""The entry-point group of what computes gradients here and now."""
_TOLERANCE: Final = {"float64": 1e-5, "float32": 1e-3, "float16": 5e-2, "bfloat16": 1e-1}
"""Of the norm of a difference, relative; what rounding alone may do is asked of PyTorch where this is not enough.

The exporter writes scalars in float32, also of models in float64."""
_NOTHING: Final = {"float64": 1e-8, "float32": 1e-6, "float16": 1e-2, "bfloat16": 5e-2}
"""Of the largest gradient's norm: what is smaller may be rounding alone, as of a bias before a normalization."""
_NUDGE: Final = 4.0
"""Roundings by which parameters are moved, to see how far rounding moves gradients."""
_LOUD: Final = 0.1
"""Rounding that moves a gradient further than this says nothing about it."""
_OTHER: Final = 3
"""Samples in the second comparison; a third one has more than twice the example's."""


def _feeds_of(feeds: Mapping[str, Array], count: int) -> dict[str, Array]:
    return {name: array[np.arange(count) % array.shape[0]] if array.ndim else array for name, array in feeds.items()}


def prove(  # noqa: PLR0917  # one caller
    torch: Any,
    ran: Ran,
    feeds: Mapping[str, Array],
    graph: Graph,
    values: Mapping[str, Array],
    chosen: Callable[[str], bool],
) -> str:
    """One line that says what was compared. `feeds` has the whole example by the graph's inputs; `chosen`: whether a
    user said of a parameter whether it trains.

    Raises ModuleRefusedError, naming parameter and module, where graph and module differ.
    """
    started = time.perf_counter()
    gradients = _gradients()
    if gradients is None:
        return "not compared with PyTorch: no evaluator is installed, pip install 'weft[cluster]'"
    example, theirs = ran.example, ran.run
    is_cut = example is not ran.whole
    given = _feeds_of(feeds, 2) if is_cut else feeds
    _check_buffers(ran.changed, graph)
    if len(theirs.outputs) != len(graph.outputs):
        raise ModuleRefusedError(
            f"the module gives {len(theirs.outputs)} tensors and its graph {len(graph.outputs)} outputs, so they "
            "cannot be compared: return tensors, or a tuple or dictionary of them"
        )
    try:
        infer(graph)
    except GraphError as error:
        raise ModuleRefusedError(f"the graph holds for this number of samples alone: {error}") from None
    names = _names(example.module)
    trains = {name for name in paths(graph) if name in names}
    if not trains:
        raise ModuleRefusedError(
            "no parameter of the graph has a gradient, so there is nothing to train. "
            + _Comparison(torch, ran, graph).first_cause()
        )
    ours_outputs, ours = _weft_run(graph, values, given, trains, theirs, gradients)
    compared = _Comparison(torch, ran, graph)
    compared.outputs(ours_outputs)
    count, worst = compared.gradients(ours, trains, names, chosen)
    evaluation = _check_evaluation(torch, example, given, graph, values, compared)
    has_batch = {each.type.shape[:1] for each in graph.inputs} <= {(), (BATCH,)}
    # A large example was compared at two samples, which is another number than it was exported with.
    for samples in _other_sizes(ran.samples) if has_batch and ran.samples > 1 and not is_cut else ():
        _check_size(torch, ran, samples, _feeds_of(feeds, samples), graph, values)
    seconds = ran.seconds + time.perf_counter() - started
    return (
        f"tried on {'two samples of ' if is_cut else ''}the example: outputs and gradients of {count} parameters agree "
        f"with PyTorch's (largest difference {worst:.0e}){evaluation}; {seconds:.1f} s"
    )


def _gradients() -> Any:
    points = sorted(entry_points(group=GRADIENTS), key=lambda point: point.name)
    try:
        return points[0].load() if points else None
    except ImportError:
        return None


def _weft_run(  # noqa: PLR0917  # one caller
    graph: Graph,
    values: Mapping[str, Array],
    feeds: Mapping[str, Array],
    trains: set[str],
    theirs: Run,
    gradients: Any,
) -> tuple[list[Array], dict[str, Array]]:
    """(outputs in order, gradients by parameter)."""
    fixed = _without_randomness(_sized(graph, feeds))
    with_loss, loss = _with_loss(fixed, theirs.outputs)
    kept = tuple(replace(each, trainable=each.name in trains) for each in with_loss.parameters)
    read = {name for node in with_loss.nodes for name in node.inputs}.union(with_loss.outputs)
    kept = tuple(each for each in kept if each.name in read)
    whole = replace(with_loss, parameters=kept)
    given = {each.name: values[each.name] for each in kept}
    found, made = gradients(whole, loss, feeds, parameters=given)
    return [found[name] for name in graph.outputs], made


def _sized(graph: Graph, feeds: Mapping[str, Array]) -> Graph:
    """The graph for inputs of these shapes alone."""
    inputs = tuple(Input(each.name, TensorType(each.type.dtype, feeds[each.name].shape)) for each in graph.inputs)
    return replace(graph, inputs=inputs)


def _with_loss(graph: Graph, outputs: Sequence[Array]) -> tuple[Graph, str]:
    """The graph with the sum of its outputs' parts, as PyTorch's side has it."""
    types = infer(graph)
    nodes, constants, parts = list(graph.nodes), list(graph.constants), []
    for place, name in enumerate(graph.outputs):
        type_ = types[name]
        if not type_.dtype.is_float:
            continue
        stem = f"proof/{place}"
        drawn = weights_of(place, outputs[place].shape).astype(type_.dtype.numpy)
        constants.append(Constant(f"{stem}/drawn", np.ascontiguousarray(drawn)))
        nodes.append(Node("Mul", f"{stem}/product", (name, f"{stem}/drawn"), (f"{stem}/product",)))
        nodes.append(Node("ReduceSum", f"{stem}/sum", (f"{stem}/product",), (f"{stem}/sum",), {"keepdims": 0}))
        to = {"to": NUMBER_OF_DTYPE[DType.FLOAT64 if type_.dtype is DType.FLOAT64 else DType.FLOAT32]}
        nodes.append(Node("Cast", f"{stem}/part", (f"{stem}/sum",), (f"{stem}/part",), to))
        parts.append(f"{stem}/part")
    wide = {types[name].dtype for name in graph.outputs if types[name].dtype.is_float}
    if len(wide) > 1 and DType.FLOAT64 in wide:
        raise ModuleRefusedError("outputs are of float64 and of other types, and cannot be added up to be compared")
    nodes.append(Node("Sum", "proof/loss", tuple(parts), ("proof/loss",)))
    made = replace(graph, nodes=tuple(nodes), constants=tuple(constants), outputs=(*graph.outputs, "proof/loss"))
    return made, "proof/loss"


def _without_randomness(graph: Graph) -> Graph:
    """Dropout passes its input on, and nodes that draw give what `without_randomness` gives."""
    types = infer(graph)
    nodes: list[Node] = []
    for node in graph.nodes:
        if node.domain != ONNX_DOMAIN or node.op_type not in _DRAWS:
            nodes.append(node)
        elif node.op_type == "Dropout":
            nodes.append(replace(node, inputs=node.inputs[:1]))
        else:
            nodes.extend(_fixed_sample(node, types))
    return replace(graph, nodes=tuple(nodes))


_DRAWS: Final = {
    "Dropout", "Bernoulli", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike",
}  # fmt: skip


def _fixed_sample(node: Node, types: Mapping[str, TensorType]) -> list[Node]:
    """The nodes in the place of one that draws."""
    (output,) = node.outputs
    number = NUMBER_OF_DTYPE[types[output].dtype]
    if node.op_type == "Bernoulli":
        return [
            Node("Round", f"{node.name}/fixed", node.inputs, (f"{output}/fixed",)),  # 0.5 goes to 0
            Node("Cast", node.name, (f"{output}/fixed",), (output,), {"to": number}),
        ]
    attributes = {"mean": 0.0, "scale": 1.0, "low": 0.0, "high": 1.0, **node.attributes}
    mean, scale, low, high = (float(attributes[name]) for name in ("mean", "scale", "low", "high"))  # type: ignore[arg-type]
    value = mean + scale * HALF if "Normal" in node.op_type else low + (high - low) * HALF
    made = {"value": value, "dtype": number}
    if node.op_type.endswith("Like"):
        shape = Node("Shape", f"{node.name}/shape", node.inputs, (f"{output}/shape",))
        return [shape, Node("ConstantOfShape", node.name, (f"{output}/shape",), (output,), made)]
    raise ModuleRefusedError(
        f"node {node.name!r} ({node.op_type}) draws numbers of a fixed shape; draw them like a tensor"
    )


class _Comparison:
    """Differences of one run. What rounding does is asked of PyTorch once, where it is needed."""

    def __init__(self, torch: Any, ran: Ran, graph: Graph) -> None:
        theirs = ran.run
        self.torch = torch
        self.state = ran.state
        self.example = ran.example
        self.graph = graph
        self.theirs = theirs
        types = [*(each.type for each in graph.parameters), *(each.type for each in graph.inputs)]
        found = {type_.dtype.value for type_ in types} & _TOLERANCE.keys()
        self.dtypes = found or {"float32"}
        self.tolerance = max(_TOLERANCE[name] for name in self.dtypes)
        self._moved: Run | None = None

    def moved(self) -> Run:
        if self._moved is None:
            with self.torch.random.fork_rng(devices=[]), kept_buffers(self.example.module):
                self._moved = run_once(self.torch, self.example, nudge=_NUDGE)
        return self._moved

    def outputs(self, ours: Sequence[Array]) -> None:
        sizes = [float(np.linalg.norm(each)) for each in self.theirs.outputs if each.dtype.kind == "f"]
        nothing = max(_NOTHING.get(name, 0.0) for name in self.dtypes) * max([1.0, *filter(np.isfinite, sizes)])
        for place, (name, theirs, own) in enumerate(zip(self.graph.outputs, self.theirs.outputs, ours, strict=True)):
            if theirs.shape != own.shape:
                raise ModuleRefusedError(f"output {name!r} is {array_type(own)}, and the module's {array_type(theirs)}")
            distance, size = _distance(own, theirs)
            if distance <= self.tolerance * size + nothing:
                continue
            if np.isfinite(distance) and distance <= self._noise(theirs, self.moved().outputs[place]):
                continue
            raise ModuleRefusedError(
                f"output {name!r} differs from the module's by {distance / max(size, 1e-300):.2g} of its norm, on the "
                f"example, in training without randomness. {self.first_cause()}"
            )

    def gradients(
        self, ours: Mapping[str, Array], trains: set[str], names: Mapping[str, str], chosen: Callable[[str], bool]
    ) -> tuple[int, float]:
        """(how many were compared, the largest difference). Raises ModuleRefusedError."""
        theirs = self.theirs.gradients
        largest = max((float(np.linalg.norm(each)) for each in theirs.values() if each is not None), default=0.0)
        nothing = max(_NOTHING.get(name, 0.0) for name in self.dtypes) * largest
        by_own = {names[name]: name for name in trains}
        worst, count = 0.0, 0
        for own in sorted(theirs.keys() | by_own.keys()):
            name, gradient = by_own.get(own), theirs.get(own)
            if chosen(name or own) and (name is None or gradient is None):
                continue
            size = 0.0 if gradient is None else float(np.linalg.norm(gradient))
            if name is None:
                if size > nothing:
                    raise ModuleRefusedError(
                        f"parameter {own!r}{self.where(own)} has a gradient in PyTorch, and none in the graph that was "
                        "exported: the exporter has lost how it is read"
                    )
                continue
            made = ours[name]
            if not np.isfinite(size):
                raise ModuleRefusedError(
                    f"PyTorch's own gradient of parameter {own!r}{self.where(own)} is not finite on the example, as of "
                    "a root or a logarithm at 0: give another example, or mend the module"
                )
            if gradient is None:
                if not float(np.linalg.norm(made)) <= nothing:  # nor NaN
                    raise ModuleRefusedError(self.no_gradient(own))
                continue
            count += 1
            distance = float(np.linalg.norm(made - gradient))
            error = distance / max(size, nothing, 1e-300)
            if not distance <= self.tolerance * size + nothing:
                moved = self.moved().gradients[own]
                if moved is None or not distance <= self._noise(gradient, moved, largest):
                    self._refuse_loud(largest)
                    raise ModuleRefusedError(
                        f"the gradient of parameter {own!r}{self.where(own)} differs from PyTorch's by {error:.2g} of "
                        f"its norm, on the example. {self.first_cause()}"
                    )
            if size > 1e-4 * largest:
                worst = max(worst, error)
        return count, worst

    def _noise(self, theirs: Array, moved: Array, largest: float = 0.0) -> float:
        """How far rounding moves what PyTorch computes, with a margin; at most a share of its norm."""
        if not np.issubdtype(theirs.dtype, np.floating):
            return 0.0
        size = max(float(np.linalg.norm(theirs)), 1e-4 * largest)
        return min(16 * float(np.linalg.norm(moved.astype(np.float64) - theirs)), _LOUD * size)

    def _refuse_loud(self, largest: float) -> None:
        """Raises ModuleRefusedError where rounding moves one of PyTorch's own gradients so far that a difference on
        this example says nothing about the graph."""
        moved = self.moved().gradients
        for own, gradient in sorted(self.theirs.gradients.items()):
            again = moved[own]
            if gradient is None or again is None:
                continue
            size = max(float(np.linalg.norm(gradient)), 1e-4 * largest)
            change = float(np.linalg.norm(again.astype(np.float64) - gradient))
            if change > _LOUD * size:
                raise ModuleRefusedError(
                    f"the gradients cannot be compared on the example: rounding alone moves PyTorch's own of parameter "
                    f"{own!r}{self.where(own)} by {change / size:.2g} of its norm, as where a normalization gets "
                    "numbers that are all the same. Give an example whose numbers vary; weft.fit takes the first rows "
                    "of the data: shuffle them"
                )

    def where(self, own: str) -> str:
        owner = own.rpartition(".")[0]
        kind = type(self.example.module.get_submodule(owner)).__name__
        return f" of module {owner!r} ({kind})" if owner else f" of {kind}"

    def no_gradient(self, own: str) -> str:
        return (
            f"parameter {own!r}{self.where(own)} has no gradient in PyTorch, and one in the graph that was exported: "
            "it is read within torch.no_grad(), .data or the like, which leave no trace; use .detach() there, or "
            f"from_torch(..., frozen={own!r})"
        )

    def first_cause(self) -> str:
        if self.theirs.own_backward is not None:
            return (
                f"The backward of {self.theirs.own_backward}, a torch.autograd.Function, is not exported, only what it "
                "computes forward: write a straight-through estimate as x + (f(x) - x).detach()"
            )
        if self.state:
            return self.state[0]
        return (
            "The exporter has written something else than the module computes, or a block of torch.no_grad() that it "
            "cannot see. Look at that module for what depends on values, sizes or hidden state; from_torch(..., "
            "verify=False) trains the graph as it is"
        )


def _distance(ours: Array, theirs: Array) -> tuple[float, float]:
    """(the norm of the difference, the norm): infinite where whole numbers, or what is not finite, are not the same."""
    if ours.dtype.kind in "iub" or theirs.dtype.kind in "iub":
        return (0.0 if np.array_equal(ours, theirs) else np.inf), 0.0
    ours, theirs = ours.astype(np.float64), theirs.astype(np.float64)
    finite = np.isfinite(theirs)
    is_same = np.array_equal(finite, np.isfinite(ours)) and np.array_equal(
        ours[~finite], theirs[~finite], equal_nan=True
    )
    if not is_same:
        return np.inf, 0.0
    return float(np.linalg.norm(ours[finite] - theirs[finite])), float(np.linalg.norm(theirs[finite]))


def _differs(ours: Array, theirs: Array, tolerance: float) -> bool:
    if ours.shape != theirs.shape:
        return True
    distance, size = _distance(ours, theirs)
    return not distance <= tolerance * max(size, 1e-3)


def _names(module: Any) -> dict[str, str]:
    """Every name of each parameter -> its first one, which `named_parameters` has."""
    first: dict[int, str] = {}
    return {name: first.setdefault(id(each), name) for name, each in module.named_parameters(remove_duplicate=False)}


def _check_buffers(changed: Sequence[str], graph: Graph) -> None:
    """Raises ModuleRefusedError for a buffer that forward changes, where it is not BatchNormalization's to keep."""
    statistics = {
        name for node in graph.nodes if node.op_type == "BatchNormalization" for name in node.inputs[3:5] if name
    }
    known = {constant.name for constant in graph.constants} | {each.name for each in graph.parameters}
    for name in changed:
        if name in known - statistics:
            raise ModuleRefusedError(
                f"buffer {name!r} is changed by each forward in training, and weft keeps buffers as they are: hold its "
                f"module in eval() ({name.rpartition('.')[0]!r}), or compute it without a buffer"
            )


def _check_evaluation(  # noqa: PLR0917  # one caller
    torch: Any,
    example: Example,
    feeds: Mapping[str, Array],
    graph: Graph,
    values: Mapping[str, Array],
    compared: _Comparison,
) -> str:
    """Compares `module.eval()` with the graph as evaluation runs it. What is to be added to the line that is said."""
    modes = [(each, each.training) for each in example.module.modules()]
    if not any(mode for _, mode in modes):
        return ""
    try:
        example.module.eval()
        with torch.random.fork_rng(devices=[]), torch.no_grad(), kept_buffers(example.module):
            with without_randomness(torch, example.module, is_training=False) as draws, refusing():
                outputs = tensors_of(torch, example.called(torch))
            found = [array_of(torch, output) for output in outputs]
    finally:
        for each, mode in modes:
            each.training = mode
    if len(found) != len(graph.outputs):
        return (
            f"; in eval() the module gives {len(found)} tensors, evaluation here the {len(graph.outputs)} of training"
        )
    theirs = compared.theirs
    if sorted(draws) != sorted(theirs.draws):
        raise ModuleRefusedError(
            f"forward draws random numbers ({', '.join(sorted({*theirs.draws, *draws}))}) otherwise in eval() than in "
            "training, and weft switches off Dropout and DropPath alone: draw in both, or from_torch(..., verify=False)"
        )
    fixed = _without_randomness(_sized(graph, feeds))
    if any(node.op_type == "BatchNormalization" and node.attributes.get("training_mode") for node in fixed.nodes):
        fixed = to_inference(fixed)
        ours = run_graph(fixed, feeds, {each.name: values[each.name] for each in fixed.parameters})
        own = [ours[name] for name in graph.outputs]
    else:
        own = list(theirs.outputs)
    for name, mine, wanted in zip(graph.outputs, own, found, strict=True):
        if _differs(mine, wanted, 2 * compared.tolerance):
            raise ModuleRefusedError(
                f"evaluation differs: output {name!r} of module.eval() is not what the exported graph computes in "
                "evaluation. "
                + (
                    compared.state[0]
                    if compared.state
                    else "weft knows Dropout, DropPath and BatchNorm to change there; what else asks for self.training "
                    "is exported as it trains. from_torch(..., verify=False) takes that as it is"
                )
            )
    return ", and so do outputs in eval()"


def _other_sizes(samples: int) -> list[int]:
    """Numbers of samples to compare outputs at: few and many, odd ones."""
    return [size for size in (_OTHER, 2 * samples + 1) if size != samples]


def _check_size(  # noqa: PLR0917  # one caller
    torch: Any, ran: Ran, samples: int, feeds: Mapping[str, Array], graph: Graph, values: Mapping[str, Array]
) -> None:
    """Compares outputs alone, at another number of samples, if the module takes so many."""
    example = ran.whole.of(torch, samples)
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad(), kept_buffers(example.module):
            with without_randomness(torch, example.module):
                outputs = tensors_of(torch, example.called(torch))
            theirs = [array_of(torch, output) for output in outputs]
    except Exception:  # noqa: BLE001  # the module's own word that it takes no such batch
        return
    refused = ModuleRefusedError(
        ran.state[0]
        if ran.state
        else f"outputs differ for {samples} samples: forward asks for the size of the batch (x.shape[0], len(x), split "
        "by a number), and the graph has the example's answer. Compute with x.shape[0] as a tensor's size alone"
    )
    fixed = _without_randomness(_sized(graph, feeds))
    try:
        found = run_graph(fixed, feeds, {each.name: values[each.name] for each in fixed.parameters})
    except Exception:  # noqa: BLE001  # whatever the evaluator says of it, PyTorch takes it
        raise refused from None
    ours = [found[name] for name in graph.outputs]
    types = [*(each.type for each in graph.parameters), *(each.type for each in graph.inputs)]
    tolerance = 10 * max(_TOLERANCE.get(type_.dtype.value, 0.0) for type_ in types)
    for mine, wanted in zip(ours, theirs, strict=True):
        if _differs(mine, wanted, tolerance):
            raise refused
