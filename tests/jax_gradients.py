"""Gradients of the operators' cases by JAX's reverse mode in float64, held in a file: XLA takes a minute and more to
compile them.

`python tests/jax_gradients.py` draws `tests/kernels/jax_gradients.npz` anew, which is to be done after every change of
a case. The file says of which sources it was drawn, and by which version of JAX.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np

from gradient_case import Array, GradientCase
from gradient_cases import gradient_cases

FILE = Path(__file__).parent / "kernels" / "jax_gradients.npz"
AGAIN = "run: python tests/jax_gradients.py"
CASES = {f"{case.op_type}-{case.name}": case for case in gradient_cases()}


def cotangents_for(shapes: Iterable[tuple[int, ...]]) -> list[Array]:
    """What each output is multiplied by before all are summed up to the loss; float16 can hold it."""
    rng = np.random.default_rng(7)
    return [rng.uniform(-1, 1, shape).astype(np.float16).astype(np.float64) for shape in shapes]


def sources() -> str:
    """The digest of the modules that the cases are made in, and of this one."""
    digest = hashlib.sha256()
    for path in (*sorted(Path(__file__).parent.glob("gradient_case*.py")), Path(__file__)):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def held_sources() -> str:
    """The digest of the modules that the file was drawn of."""
    return str(_held()["sources"])


def held_gradients(name: str) -> list[Array]:
    """Of the differentiated inputs, in order, as the file has them. KeyError for a case that it lacks."""
    flat, case = _by_name()[name], CASES[name]
    shapes = [np.asarray(case.inputs[place]).shape for place in case.differentiated]
    parts = np.split(flat, np.cumsum([np.prod(shape, dtype=int) for shape in shapes])[:-1])
    return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]


@cache
def _held() -> dict[str, Any]:
    with np.load(FILE) as file:
        return dict(file)


@cache
def _by_name() -> dict[str, Array]:
    held = _held()
    parts = np.split(held["gradients"], np.cumsum(held["sizes"])[:-1])
    return dict(zip(map(str, held["names"]), parts, strict=True))


def gradients_by_jax(op_type: str) -> dict[str, list[Array]]:
    """Those of all cases of an operator, compiled as one: XLA takes longer to begin than to compile a few more."""
    names = [name for name, case in CASES.items() if case.op_type == op_type]
    functions = {name: _function(CASES[name]) for name in names}
    primals = {name: [np.asarray(CASES[name].inputs[at]) for at in CASES[name].differentiated] for name in names}

    def pulled_back(primals: dict[str, list[Any]], cotangents: dict[str, list[Any]]) -> dict[str, Any]:
        return {name: jax.vjp(functions[name], *primals[name])[1](tuple(cotangents[name])) for name in names}

    before = jax.config.read("jax_enable_x64")
    jax.config.update("jax_enable_x64", True)
    try:
        shapes = jax.eval_shape(lambda given: {name: functions[name](*given[name]) for name in names}, primals)
        cotangents = {name: cotangents_for([out.shape for out in shapes[name]]) for name in names}
        # Without optimization it takes a tenth of the time that step by step takes.
        quick = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
        gradients = jax.jit(pulled_back, compiler_options=quick)(primals, cotangents)
    finally:
        jax.config.update("jax_enable_x64", before)
    return {name: [np.asarray(found) for found in gradients[name]] for name in names}


def _function(case: GradientCase) -> Callable[..., tuple[Any, ...]]:
    def function(*xs: Any) -> tuple[Any, ...]:
        made = case.reference(*xs)
        outputs = made if isinstance(made, tuple) else (made,)
        return (*outputs, *xs) if case.flat else outputs

    return function


if __name__ == "__main__":
    every = {
        name: np.concatenate([array.ravel() for array in arrays])
        for op_type in dict.fromkeys(case.op_type for case in CASES.values())
        for name, arrays in gradients_by_jax(op_type).items()
    }
    np.savez_compressed(
        FILE,
        allow_pickle=False,
        names=np.array(list(every)),
        sizes=np.array([array.size for array in every.values()]),
        gradients=np.concatenate(list(every.values())),
        sources=np.array(sources()),
        jax=np.array(jax.__version__),
    )
    sys.stdout.write(f"{len(every)} cases, by JAX {jax.__version__}\n")
