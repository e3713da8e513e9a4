"""What is no legal body is refused with a place; a body of any kind raises nothing but GraphError."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flow_graphs import body, graph, op
from graph_strategies import examples, nodes_with_bodies
from weft_graph.check import check, problems
from weft_graph.differentiation import differentiate
from weft_graph.errors import DTypeError, GraphError, ShapeError
from weft_graph.infer import infer
from weft_graph.ir import Constant, Graph, Node, Subgraph
from weft_graph.json_form import graph_from_json, graph_to_json
from weft_graph.limits import MOST_NESTED
from weft_graph.types import DType, TensorType

X, FLAG = np.zeros((4, 3)), np.array(True)


def of(*nodes: Node) -> Graph:
    return graph(nodes, {"w": np.zeros(3)}, {"x": X, "flag": FLAG, "m": np.array(2)})


def branch(then: Subgraph, other: Subgraph | None = None, inputs: str = "flag w") -> Graph:
    return of(op("If", inputs, "loss", then_branch=then, else_branch=other or body("", " ".join(then.captured), "w")))


def loop(inner: Subgraph, inputs: str = "m - w", outputs: str = "loss") -> Graph:
    return of(op("Loop", inputs, outputs, body=inner))


def problem_of(whole: Graph) -> tuple[str, str]:
    first = next(problems(whole))
    return first.pointer, first.message


BODY = "/nodes/0/attributes/then_branch"
TANH = op("Tanh", "w", "t")


@pytest.mark.parametrize(
    ("then", "pointer", "message"),
    [
        (
            body("", "w", "t", op("Tanh", "ghost", "t")),
            f"{BODY}/nodes/0/inputs/0",
            "reads 'ghost', which nothing before",
        ),
        (body("", "w", "u", op("Tanh", "t", "u"), TANH), f"{BODY}/nodes/0/inputs/0", "reads 't', which nothing before"),
        (body("", "w", "ghost", TANH), f"{BODY}/outputs/0", "output 'ghost' is a value that nothing"),
        (body("", "w", "t", TANH, op("Tanh", "w", "t")), f"{BODY}/nodes/1/name", "defined already at"),
        (body("", "w", "w", constants={"w": 1.0}), f"{BODY}/constants/0/name", "'w' is defined already at /captured/0"),
        (body("", "w", "w", op("Tanh", "w", "weft.t")), f"{BODY}/nodes/0/outputs/0", "are the converter's"),
        (body("", "w", "t", op("Frobnicate", "w", "t")), f"{BODY}/nodes/0/op_type", "no operator 'Frobnicate'"),
        (body("", "w", "t", op("Send", "w", "t", "weft")), f"{BODY}/nodes/0/domain", "are the converter's, but for"),
        (body("", "w", "t", op("Add", "w", "t")), f"{BODY}/nodes/0/inputs", "input 'B' is missing"),
        (body("", "w", "t", op("Tanh", "w", "t", slope=1)), f"{BODY}/nodes/0/attributes/slope", "no attribute 'slope'"),
        (body("", "w x", "w"), f"{BODY}/captured", "captures 2 values, and the node has 1 inputs"),
    ],
)
def test_what_is_no_body_is_refused_where_it_stands(then: Subgraph, pointer: str, message: str) -> None:
    inputs = "flag w" if then.captured == ("w",) else "flag"
    found, said = problem_of(branch(then, inputs=inputs))
    assert (found, message in said) == (pointer, True), said


def test_bodies_of_a_node_capture_the_same() -> None:
    whole = branch(body("", "w", "w"), body("", "v", "v"))
    assert problem_of(whole) == (
        "/nodes/0/attributes/else_branch/captured",
        "node 'n_loss' (If): else_branch captures other values than then_branch",
    )


def test_what_is_captured_is_not_left_out() -> None:
    pointer, said = problem_of(branch(body("", "w", "w"), inputs="flag -"))
    assert pointer == "/nodes/0/inputs"
    assert "is left out" in said


def test_names_of_nodes_are_unique_over_all_bodies() -> None:
    pointer, said = problem_of(branch(body("", "w", "t", TANH), body("", "w", "t", TANH)))
    assert pointer == "/nodes/0/attributes/else_branch/nodes/0/name"
    assert "is defined already at /nodes/0/attributes/then_branch/nodes/0/name" in said


def test_a_constant_in_a_body_has_a_known_type() -> None:
    odd = Subgraph((), ("w",), (), ("w",), (Constant("c", np.zeros(1, complex)),))
    (problem,) = problems(branch(odd))
    assert problem.pointer == f"{BODY}/constants/0"
    assert isinstance(problem, DTypeError)


def deep(count: int) -> Graph:
    inner = body("", "w", "w")
    for number in range(count):
        same = body("", "w", "w")
        inner = body("", "w", f"o{number}", op("If", "w w", f"o{number}", then_branch=inner, else_branch=same))
    return branch(inner)


def test_bodies_are_not_nested_without_end() -> None:
    assert not [problem for problem in problems(deep(MOST_NESTED - 1)) if "nested" in problem.message]
    assert "nested more than 8 deep" in problem_of(deep(MOST_NESTED))[1]
    assert "nested more than 8 deep" in problem_of(deep(3000))[1]


SHAPES = [
    (branch(body("", "w", "w"), inputs="w w"), DTypeError, "'cond' is float64, and takes bool"),
    (branch(body("a", "w", "a")), ShapeError, "a branch takes no inputs"),
    (branch(body("", "w", "w w")), ShapeError, "then_branch gives 2 values, else_branch 1"),
    (branch(body("", "w x", "w"), body("", "w x", "x"), "flag w x"), ShapeError, "ranks must be one"),
    (branch(body("", "w m", "w"), body("", "w m", "m"), "flag w m"), DTypeError, "element types must be one"),
    (loop(body("i", "", "i")), ShapeError, "makes 2 inputs of the node; it has 3"),
    (loop(body("i c v", "", "c")), ShapeError, "it must give a condition and those"),
    (loop(body("i c v", "", "v v")), DTypeError, "is the condition, one bool, and is float64"),
    (loop(body("i c v", "", "c i")), DTypeError, "'v' is float64[3] in one way and int64[] in another"),
    (loop(body("i c v", "", "c v v"), "x - w"), DTypeError, "'M' is float64, and takes int64"),
    (of(op("Scan", "w x", "loss", body=body("s p", "", "s"), num_scan_inputs=3)), ShapeError, "must be from 1 to the"),
    (
        of(op("Scan", "w x", "loss", body=body("s p", "", "p s"), num_scan_inputs=2)),
        ShapeError,
        "4 and 3 differ|3 and 4",
    ),
    (
        of(op("Scan", "w x", "loss", body=body("s p", "", "p"), num_scan_inputs=1, scan_input_axes=(3,))),
        ShapeError,
        "value 0 has 2 dimensions, and none is 3",
    ),
    (
        of(op("Scan", "w x", "loss", body=body("s p", "", "p"), num_scan_inputs=1, scan_input_directions=(2,))),
        ShapeError,
        "must be 0, from the front, or 1",
    ),
    (
        of(op("Scan", "x x", "loss", body=body("s p", "", "p"), num_scan_inputs=1)),
        ShapeError,
        r"the state 's' begins as float64\[4, 3\], and the body makes it float64\[3\]",
    ),
]


@pytest.mark.parametrize(("whole", "error", "message"), SHAPES, ids=[case[2] for case in SHAPES])
def test_types_that_do_not_fit_are_refused_with_the_node(whole: Graph, error: type[GraphError], message: str) -> None:
    check(whole)
    with pytest.raises(
        error, match=message.replace("[]", r"\[\]").replace("[3]", r"\[3\]").replace("\\\\", "\\")
    ) as caught:
        infer(whole)
    assert caught.value.node == "n_loss"


def test_an_error_in_a_body_has_its_place() -> None:
    whole = branch(body("", "w x", "y", op("MatMul", "w x", "y")), body("", "w x", "w"), "flag w x")
    with pytest.raises(ShapeError) as caught:
        infer(whole)
    assert caught.value.pointer == f"{BODY}/nodes/0"


def types(whole: Graph, *names: str) -> list[TensorType]:
    check(whole)
    found = infer(whole)
    return [found[name] for name in names]


def test_branches_that_differ_in_a_dimension_give_one_that_is_unknown() -> None:
    cut = body("", "w x", "y", op("Slice", "x zero one", "y"), constants={"zero": [0], "one": [1]})
    (type_,) = types(branch(cut, body("", "w x", "x"), "flag w x"), "loss")
    assert (type_.rank, type_.shape[1], type_.is_known) == (2, 3, False)


@pytest.mark.parametrize("known", [True, False])
def test_a_branch_that_is_never_taken_need_not_fit(known: bool) -> None:
    wrong = body("", "w x", "y", op("MatMul", "w x", "y"))
    right = body("", "w x", "x")
    node = op("If", "c w x", "loss", then_branch=right if known else wrong, else_branch=wrong if known else right)
    whole = graph([node], {"w": np.zeros(3)}, {"x": X}, {"c": np.array(known)})
    assert types(whole, "loss") == [TensorType(DType.FLOAT64, (4, 3))]


def test_a_loop_whose_condition_always_holds_has_m_turns() -> None:
    turned = body("i go v", "", "go v v")
    passed = body("i go v", "", "go2 v v", op("Identity", "go", "go2"))
    fixed = body("i go v", "", "yes v v", constants={"yes": np.array(True)})
    asked = body("i go v", "", "go2 v v", op("Not", "go", "go2"))
    for inner, count in ((turned, 7), (passed, 7), (fixed, 7), (asked, None)):
        node = op("Loop", "m - w", "loss parts", body=inner)
        (parts,) = types(graph([node], {"w": np.zeros(3)}, constants={"m": np.array(7)}), "parts")
        assert parts.shape[1:] == (3,)
        assert (parts.shape[0] == count) if count is not None else not parts.is_known
    (open_,) = types(loop(turned, outputs="loss parts"), "parts")
    assert not open_.is_known
    many = graph([op("Loop", "m - w", "loss parts", body=turned)], {"w": np.zeros(3)}, constants={"m": np.array(-2)})
    assert types(many, "parts")[0].shape == (0, 3)


def test_a_carried_dimension_that_turns_change_is_unknown() -> None:
    grown = body("i go v u", "w", "go v2 v", op("Concat", "v w", "v2", axis=0))
    node = op("Loop", "m - w w w", "loss after", body=grown)
    whole = graph([node], {"w": np.zeros(3)}, {"m": np.array(2)})
    for type_ in types(whole, "loss", "after"):
        assert (type_.rank, type_.is_known) == (1, False)


def test_a_graph_with_bodies_is_the_same_after_json() -> None:
    inner = body("i go v", "w", "go v2", op("Mul", "v w", "v2"), constants={"c": [1.0]})
    document = graph_to_json(loop(inner, "m - w w"))
    assert graph_to_json(graph_from_json(document)) == document


@given(st.lists(nodes_with_bodies, min_size=1, max_size=3))
@examples(150)
def test_bodies_of_any_kind_raise_nothing_but_graph_errors(nodes: Iterable[Node]) -> None:
    whole = graph(
        [*nodes, op("ReduceSum", "w", "loss", keepdims=0)],
        {"w": np.zeros(3)},
        {"a": np.zeros((2, 3)), "b": np.zeros(3), "x": X, "flag": FLAG},
    )
    list(problems(whole))
    try:
        check(whole)
        infer(whole)
        differentiate(whole, "loss")
    except GraphError:
        pass


@given(st.sampled_from(["If", "Loop", "Scan"]), st.data())
@examples(60)
def test_loops_of_legal_bodies_are_inferred_and_derived_or_refused(op_type: str, data: st.DataObject) -> None:
    """Wiring is arbitrary, but within what a body may be: what passes the check has types, or is refused by name."""
    count = data.draw(st.integers(0, 3))
    first = {"If": (), "Loop": ("i", "go"), "Scan": ()}[op_type]
    inputs = () if op_type == "If" else (*first, *(f"v{place}" for place in range(count)))
    values = [*inputs, "w", "x"]
    nodes = []
    for number in range(data.draw(st.integers(0, 4))):
        kind = data.draw(st.sampled_from(["Add", "Tanh", "Identity", "MatMul", "Not", "Concat"]))
        reads = " ".join(
            data.draw(st.sampled_from(values)) for _ in range(2 if kind in {"Add", "MatMul", "Concat"} else 1)
        )
        attributes = {"axis": 0} if kind == "Concat" else {}
        nodes.append(op(kind, reads, f"t{number}", **attributes))
        values.append(f"t{number}")
    outputs = tuple(data.draw(st.sampled_from(values)) for _ in range(data.draw(st.integers(0, 5))))
    inner = Subgraph(inputs, ("w", "x"), tuple(nodes), outputs)
    given_ = [data.draw(st.sampled_from(["w", "x", "b"])) for _ in range(count)]
    reads = {"If": ["flag"], "Loop": ["m", "-"], "Scan": []}[op_type] + ([] if op_type == "If" else given_) + ["w", "x"]
    if op_type == "If":
        bodies = {"then_branch": inner, "else_branch": Subgraph((), ("w", "x"), (), ("w",) * len(outputs))}
    else:
        bodies = {"body": inner}
    extra = {"num_scan_inputs": data.draw(st.integers(0, 2))} if op_type == "Scan" else {}
    made = " ".join(f"y{place}" for place in range(max(len(outputs), 1)))
    node = op(op_type, " ".join(reads), made, **bodies, **extra)
    ends = [op("ReduceSum", "y0", "s", keepdims=0), op("ReduceSum", "w", "p", keepdims=0), op("Add", "s p", "loss")]
    whole = graph(
        [node, *ends],
        {"w": np.zeros(3)},
        {"x": np.zeros((4, 3)), "b": np.zeros((4, 3)), "flag": FLAG, "m": np.array(2)},
    )
    try:
        check(whole)
        infer(whole)
        differentiate(whole, "loss")
    except GraphError:
        pass
