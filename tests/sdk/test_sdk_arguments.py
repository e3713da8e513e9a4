"""The commonest mistakes are told in one line that says what to write instead, before anything is sent."""

from __future__ import annotations

import inspect
import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from sdk_fakes import answers, job
from weft import nn
from weft.api import optimizer
from weft.api.job import JobSpec
from weft.optimizers import BY_NAME
from weft_graph.rules.built_in import BUILT_IN

DATA = weft.numpy_data("points.npz", evaluate=(80, 100))


def scores() -> tuple[weft.Expression, weft.Expression]:
    y = weft.input("y", ("batch",), "int64")
    out = nn.Linear(4, 2)(weft.input("x", ("batch", 4)))
    return nn.cross_entropy(out, y), nn.accuracy(out, y)


SCORES = scores()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"epochs": None}, "give either epochs or steps, how long to train; neither was given"),
        ({"steps": 3}, "both epochs=1 and steps=3 were given"),
        ({"epochs": 0}, "epochs is 0; it should be greater than or equal to 1"),
        ({"batch_size": 0}, "batch_size is 0; it should be greater than or equal to 1"),
        ({"workers": 0}, "workers is 0; it should be greater than or equal to 1"),
        ({"shards": 1.5}, "shards is 1.5; it should be a valid integer"),
        ({"seed": -1}, "seed is -1; it should be"),
        ({"optimizer": "adm"}, "no optimizer is called 'adm'; did you mean 'adam'?"),
        ({"optimizer": {"name": "adam", "lr": "fast"}}, "optimizer.lr is 'fast'; it should be a number, or a schedule"),
        ({"optimizer": {"lr": 0.1}}, "optimizer is {'lr': 0.1}; its 'name' is missing"),
        ({"optimizer": "lion"}, "no optimizer is called 'lion'; there are sgd, adam, adamw, adagrad, rmsprop"),
        (
            {"optimizer": 3},
            "optimizer is of builtins.int; write weft.SGD(...), weft.Adam(...), or a name such as 'adam'",
        ),
        ({"metrics": {"my accuracy": SCORES[1]}}, "a name in metrics is 'my accuracy'; a name has 1 to 128 letters"),
        ({"metrics": {"accuracy": 0.5}}, "metric 'accuracy' is an expression, not float"),
        ({"metrics": [SCORES[1]]}, "metrics are expressions by name"),
        ({"name": ""}, "name is ''; a name has 1 to 128 letters"),
        ({"name": "two words"}, "name is 'two words'; a name has 1 to 128 letters"),
        ({"data": 7}, "data is weft.numpy_data(...) or the path of a .npz file, not int"),
        ({"data": ""}, "path is ''"),
    ],
)
def test_a_wrong_argument_of_submit_is_named(wrong: dict[str, Any], message: str) -> None:
    script = answers(job())
    arguments: dict[str, Any] = {"data": DATA, "epochs": 1, **wrong}
    with pytest.raises(weft.ArgumentError, match=re.escape(message)) as caught:
        script.client().submit(SCORES[0], **arguments)
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, weft.WeftError)
    assert script.requests == []


def test_a_loss_is_an_expression() -> None:
    with pytest.raises(weft.ArgumentError, match=r"loss is an expression.* not ndarray"):
        weft.job_spec(np.zeros(3), data=DATA, epochs=1)  # type: ignore[arg-type]  # the mistake is the point


def test_a_path_will_do_for_data(tmp_path: Path) -> None:
    loss = scores()[0]
    for path in ("points.npz", Path("points.npz")):
        spec = weft.job_spec(loss, data=path, epochs=1)
        assert spec == weft.job_spec(loss, data=weft.numpy_data("points.npz"), epochs=1)


@pytest.mark.parametrize("rows", [0.2, 5, (1, 2, 3), ("a", "b"), (0.5, 2)])
def test_rows_are_two_numbers(rows: Any) -> None:
    with pytest.raises(weft.ArgumentError, match=r"^evaluate is .*from \(included\) to \(excluded\)"):
        weft.numpy_data("p.npz", evaluate=rows)


def test_rows_may_be_numbers_of_numpy() -> None:
    rows = np.arange(80, 120, 20)
    assert weft.numpy_data("points.npz", evaluate=(rows[0], rows[1])) == DATA


def test_rules_are_the_models_and_say_what_they_have() -> None:
    assert weft.SGD(0.1) == optimizer.SGD(lr=0.1)
    assert weft.Adam(0.1, betas=(0.5, 0.9)) == optimizer.Adam(lr=0.1, betas=(0.5, 0.9))
    assert (weft.SGD(), weft.Adam()) == (optimizer.SGD(), optimizer.Adam())
    with pytest.raises(weft.ArgumentError, match=r"^Adam has no 'eta'; did you mean 'lr'\?$"):
        weft.Adam(eta=0.1)  # type: ignore[arg-type]  # the mistake is the point
    with pytest.raises(weft.ArgumentError, match=r"^SGD: nesterov needs a momentum, such as momentum=0\.9$"):
        weft.SGD(nesterov=True)
    with pytest.raises(weft.ArgumentError, match=r"^SGD: nesterov has no dampening: leave one of the two out$"):
        weft.SGD(momentum=0.9, dampening=0.5, nesterov=True)
    with pytest.raises(
        weft.ArgumentError, match=r"^SGD: lr is .*; it should be a number, or a schedule such as weft\.co"
    ):
        weft.SGD(object())  # type: ignore[arg-type]  # the mistake is the point
    with pytest.raises(weft.ArgumentError, match=r"^SGD: lr is \{.*; it should be a number, or a schedule such as"):
        weft.SGD({"value": 1})  # type: ignore[arg-type]  # likewise
    with pytest.raises(weft.ArgumentError, match=r"^SGD: lr is -1; it should be above 0 and at most 1e6$"):
        weft.SGD(-1)
    for betas, said in (
        ((0.9, 1.0), "betas[1] is 1.0; it should be at least 0 and below 1"),
        ((0.9,), "betas[1] is missing"),
        (0.9, "betas is 0.9; it should be a tuple of numbers"),
    ):
        with pytest.raises(weft.ArgumentError, match=f"^Adam: {re.escape(said)}$"):
            weft.Adam(betas=betas)  # type: ignore[arg-type]  # the mistake is the point


OTHERS: dict[str, Any] = {"betas": (0.5, 0.25), "amsgrad": True, "centered": True, "nesterov": False}


@pytest.mark.parametrize("name", BY_NAME)
def test_what_a_rule_takes_is_what_its_model_has(name: str) -> None:
    """Each argument comes in at its place, and the defaults are the model's."""
    make = BY_NAME[name]
    names = inspect.signature(make).parameters.keys() - {"multipliers"}
    given = dict.fromkeys(names, 0.5) | {word: other for word, other in OTHERS.items() if word in names}
    made = make(**given, multipliers={"*": {"lr": 2.0}})
    assert made.model_dump() == {
        "name": name,
        **given,
        "multipliers": [{"keys": "*", "lr": 2.0, "weight_decay": None, "trust": None}],
    }
    assert make() == type(made)()
    assert getattr(weft, type(made).__name__) is make
    with pytest.raises(weft.ArgumentError, match=f"^{type(made).__name__} has no 'eta'; did you mean 'lr'"):
        make(eta=0.1)


def test_every_rule_has_its_maker() -> None:
    """`momentum` and `nesterov` are SGD's."""
    assert BY_NAME.keys() == BUILT_IN.keys() - {"momentum", "nesterov"}


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "Adagrad", "RMSprop"])
def test_optimizers_have_the_words_of_pytorch_in_its_order_and_with_its_defaults(name: str) -> None:
    torch = pytest.importorskip("torch")
    own = dict(inspect.signature(getattr(weft, name)).parameters)
    theirs = inspect.signature(getattr(torch.optim, name)).parameters
    assert own.keys() - theirs.keys() == {"multipliers"}
    # What is left out is of its speed alone, or has another way here.
    assert theirs.keys() - own.keys() <= {
        "params",
        *("foreach", "fused", "capturable", "differentiable"),
        *("maximize", "decoupled_weight_decay"),
    }
    assert [word for word in own if word in theirs] == [word for word in theirs if word in own]
    for word in own.keys() & theirs.keys():
        assert own[word].default == theirs[word].default, word


@pytest.mark.parametrize(
    ("call", "word", "message"),
    [
        (weft.Adam, "beta1", "Adam has no 'beta1'; did you mean 'betas'?"),
        (weft.RMSprop, "rho", "RMSprop has no 'rho'; did you mean 'alpha'?"),
        (weft.Adagrad, "accumulator", "Adagrad has no 'accumulator'; did you mean 'initial_accumulator_value'?"),
        (weft.AdamW, "fused", "AdamW has no 'fused': leave it out: it changes speed alone, and weft chooses"),
        (weft.Adam, "maximize", "Adam has no 'maximize': train the negative of the loss instead"),
        (weft.Adam, "decoupled_weight_decay", "Adam has no 'decoupled_weight_decay'; write optimizer=weft.AdamW("),
        (
            weft.SGD,
            "params",
            "SGD has no 'params'; it has lr, momentum, dampening, weight_decay, nesterov, mult",
        ),
        (
            partial(weft.fit, None, "a.npz"),
            "device",
            "fit has no 'device': leave it out: workers compute on the device that they were",
        ),
        (
            partial(weft.fit, None, "a.npz"),
            "validation_split",
            "fit has no 'validation_split'; write data=weft.numpy_data(path, evaluate=",
        ),
        (partial(weft.fit, None, "a.npz"), "output", "fit has no 'output'; write loss=weft.Loss('mse', output=...)"),
        (weft.cosine, "T_max", "cosine has no 'T_max'; did you mean 'steps'?"),
        (weft.cosine, "eta_min", "cosine has no 'eta_min'; did you mean 'end'?"),
        (weft.exponential, "gamma", "exponential has no 'gamma'; did you mean 'factor'?"),
        (weft.piecewise, "milestones", "piecewise has no 'milestones'; write factors={1000: 0.1, 2000: 0.1}"),
        (weft.Recovery, "snapshot_every", "Recovery has no 'snapshot_every'; did you mean 'snapshot_every_s'?"),
        (partial(weft.EMA, 0.9), "eval", "EMA has no 'eval'; did you mean 'evaluate'?"),
        (weft.Communication, "compress", "Communication has no 'compress'; did you mean 'compression'?"),
        (weft.numpy_data, "eval", "numpy_data has no 'eval'; did you mean 'evaluate'?"),
        (weft.numpy_data, "batch_size", "numpy_data has no 'batch_size'; it has path, columns, train, evaluate, "),
    ],
)
def test_words_of_pytorch_and_others_lead_to_weft_s(call: Any, word: str, message: str) -> None:
    with pytest.raises(weft.ArgumentError, match=f"^{re.escape(message)}"):
        call(**{word: 1})


def test_an_operator_says_which_arguments_it_has() -> None:
    for call, message in [
        (lambda x: weft.ops.cast(x, to="float32"), "cast has no 'to'; it has x, dtype, name"),
        (weft.ops.cast, "cast: missing a required argument: 'dtype'; its arguments are x, dtype, name"),
        (lambda x: weft.ops.reduce_mean(x, axis=0), "reduce_mean has no 'axis'; did you mean 'axes'?"),
    ]:
        with pytest.raises(weft.ArgumentError, match=f"^{re.escape(message)}$"):
            call(SCORES[0])


@pytest.mark.parametrize(
    ("owner", "word", "message"),
    [
        (nn, "mse", "weft.nn has no 'mse'; did you mean 'mean_squared_error'?"),
        (nn, "CrossEntropyLoss", "weft.nn has no 'CrossEntropyLoss'; did you mean 'cross_entropy'?"),
        (weft.ops, "nosuch", "weft.ops has no 'nosuch'; it has abs, "),
        (weft.ops, "not_", "weft.ops has no 'not_'; write weft.ops.logical_not(...)"),
        (weft.ops, "tan", "weft.ops has no 'tan'; write weft.ops.apply('Tan', ...)"),
        (weft.ops, "ReduceSum", "weft.ops has no 'ReduceSum'; write weft.ops.reduce_sum(...)"),
        (SCORES[0], "tan", "an expression has no 'tan'; write weft.ops.apply('Tan', ...)"),
        (weft, "Nesterov", "weft has no 'Nesterov'; write SGD(momentum=0.9, nesterov=True)"),
        (weft, "submitt", "weft has no 'submitt'; did you mean 'submit'?"),
        (
            SCORES[0],
            "std",
            "an expression has no 'std'; write ((x - x.mean(axis, keepdims=True)) ** 2).mean(axis) ** 0.5",
        ),
        (SCORES[0], "exp", "an expression has no 'exp'; write weft.ops.exp(x)"),
        (SCORES[0], "view", "an expression has no 'view'; did you mean 'reshape'?"),
        (SCORES[0], "numpy", "an expression has no 'numpy'; did you mean 'eval'?"),
        (SCORES[0], "qqq", "an expression has no 'qqq'; it has T, "),
    ],
)
def test_a_name_that_is_not_there_is_answered_by_what_is(owner: Any, word: str, message: str) -> None:
    assert not hasattr(owner, word)
    with pytest.raises(AttributeError, match=f"^{re.escape(message)}"):
        getattr(owner, word)


def test_what_arithmetic_does_not_take_is_converted_by_astype() -> None:
    with pytest.raises(
        weft.DTypeError, match=r"is bool, and takes .*; \.astype\('float32'\) or the like converts a value$"
    ):
        (weft.input("x", (3,)) > 0).mean()


def test_a_file_to_begin_from_that_is_missing_is_named_by_its_absolute_path(tmp_path: Path) -> None:
    script = answers(job())
    with pytest.raises(
        weft.ArgumentError, match=re.escape(f"init_from: there is no file {tmp_path / 'none.safetensors'}")
    ):
        script.client().submit(SCORES[0], data=DATA, epochs=1, init_from=tmp_path / "none.safetensors")
    assert script.requests == []


def test_an_optimizer_takes_no_parameters_as_pytorch_s_do() -> None:
    for given in ([np.zeros(3)], iter([np.zeros(3)])):
        for more in ({"lr": 0.1}, {}):
            with pytest.raises(weft.ArgumentError, match=r"^Adam takes no parameters: leave them out.*multipliers="):
                weft.Adam(given, **more)  # type: ignore[misc, arg-type]  # the mistake is the point


@pytest.mark.parametrize("shape", [(None, 4), ("batch", 4.5), None])
def test_a_dimension_is_a_number_or_a_name(shape: Any) -> None:
    with pytest.raises(weft.ArgumentError, match=r"'x': .* is no dimension; .*weft\.BATCH"):
        weft.input("x", shape)


def test_a_negative_dimension_is_told_of_the_batch() -> None:
    with pytest.raises(weft.ShapeError, match=r"-1.*weft\.BATCH"):
        weft.input("x", (-1, 4))


@pytest.mark.parametrize("given", ["adam", weft.Adam, {"name": "adam"}])
def test_an_optimizer_s_name_alone_stands_for_its_defaults(given: Any) -> None:
    assert weft.job_spec(SCORES[0], data=DATA, epochs=1, optimizer=given).optimizer == weft.Adam()


def test_an_optimizer_of_pytorch_is_answered_with_weft_s() -> None:
    torch = pytest.importorskip("torch")
    theirs = torch.optim.Adam([torch.zeros(1, requires_grad=True)])
    for given in (theirs, torch.optim.Adam):
        with pytest.raises(weft.ArgumentError, match=r"^optimizer is of torch\.optim\.adam\.Adam; write weft\.Adam\("):
            weft.job_spec(SCORES[0], data=DATA, epochs=1, optimizer=given)


def test_a_job_spec_is_what_submit_sends() -> None:
    script = answers(job())
    loss, accuracy = scores()
    arguments: dict[str, Any] = {
        "metrics": {"accuracy": accuracy}, "data": DATA, "batch_size": 20, "steps": 3, "optimizer": weft.Adam(0.1),
        "workers": 2, "shards": 2, "seed": 3, "name": "points", "evaluate_every": 2,
    }  # fmt: skip
    spec = weft.job_spec(loss, **arguments)
    script.client().submit(loss, **arguments)
    assert JobSpec.model_validate_json(script.requests[0].content) == spec
    assert JobSpec.model_validate_json(spec.model_dump_json(indent=2)) == spec
