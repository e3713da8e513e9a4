"""Every CUDA source, own and generated, compiles for the GPUs of two generations. Needs NVRTC, and no GPU."""

from __future__ import annotations

import re
from functools import partial
from importlib import resources

import numpy as np
import pytest

import nvrtc
from cuda_operator_kernels import compiled_operators
from cuda_rules import user_rules
from nvrtc import ARCHITECTURES, compile_for
from weft_graph.rules.graph import rule_graph_from_json
from weft_kernels.cuda.module import CudaSource, Index, read_source, sources
from weft_kernels.cuda.rules import FusedRule

pytestmark = pytest.mark.skipif(nvrtc.why_not() is not None, reason=str(nvrtc.why_not()))


INDICES: tuple[Index, ...] = (32, 64)


def _rules(index: Index) -> CudaSource:
    """Users' rules over every float type, in one source."""
    texts = []
    for name, document in user_rules().items():
        fused = FusedRule(rule_graph_from_json(document))
        for dtype in ("float16", "float32", "float64"):
            kernel = f"rule_{name}_{dtype}"
            texts.append(fused.fused(np.dtype(dtype)).text.replace(" fused(", f" {kernel}("))
    return read_source("users_rules.cu", "\n".join(texts), index)


GENERATED = {
    "every_operator.cu": partial(compiled_operators, once=False),
    "one_of_each_operator.cu": partial(compiled_operators, once=True),
    "users_rules.cu": _rules,
}
# No source asks for its architecture: each counts in 32 bits on one of them and in 64 on the other. What is wrong with
# a type is wrong for every GPU and index, so all types of all operators are compiled once.
COMPILED = [
    (name, architecture, index)
    for name in (*sources(), *GENERATED)
    for architecture, index in zip(ARCHITECTURES, INDICES, strict=True)
    if (name, index) not in {("every_operator.cu", 64), ("one_of_each_operator.cu", 32)}
]


@pytest.mark.parametrize(("name", "architecture", "index"), COMPILED)
def test_a_source_compiles(name: str, architecture: str, index: Index) -> None:
    """Counting elements in 32 bits and in 64."""
    source = GENERATED[name](index=index) if name in GENERATED else sources(index)[name]
    assert "__CUDA_ARCH__" not in source.text
    assert ("#define WEFT_INDEX_32" in source.text, source.index) == (index == 32, index)
    size, names = compile_for(source, architecture)
    assert size > 1000
    assert set(names) == set(source.entries)
    assert source.entries


def test_the_list_is_what_the_folder_holds() -> None:
    """A source that is added is compiled, and every kernel in it is an entry for every element type."""
    folder = resources.files("weft_kernels.cuda").joinpath("sources")
    files = {file.name for file in folder.iterdir() if file.name.endswith(".cu")}
    assert files
    assert set(sources()) == files
    for source in sources().values():
        kernels = set(re.findall(r"__global__ void (\w+)\(", source.text))
        assert kernels == {entry.split("<")[0] for entry in source.entries}


def test_a_mistake_fails() -> None:
    from cupy.cuda.compiler import CompileException

    for body in (
        "__global__ void f(float* x) { x[0] = y; }",
        "template <typename T> __global__ void f(T* x) { x->missing = 0; }",
        "__global__ void f(float* x) { x[0] = 1 }",
    ):
        with pytest.raises(CompileException, match="error"):
            compile_for(read_source("wrong.cu", body), ARCHITECTURES[0])
    for body, what in (("// nothing", "no kernel"), ("template <typename Q> __global__ void f(Q* x) {}", "'Q'")):
        with pytest.raises(ValueError, match=what):
            read_source("wrong.cu", body)
