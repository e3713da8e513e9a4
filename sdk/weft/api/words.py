"""The words of messages: what other libraries call the fields of a job and the arguments of the SDK, and what pydantic
says, as plain sentences."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic_core import ErrorDetails

NAME_RULE = "a name has 1 to 128 letters, digits, '_', '.' and '-', and does not begin with '.' or '-'"

_SPEED = "leave it out: it changes speed alone, and weft chooses"
_OF_OTHERS: Mapping[str, str] = {
    **dict.fromkeys(("learning_rate", "eta"), "lr"),
    **dict.fromkeys(("beta1", "beta2", "beta_1", "beta_2", "b1", "b2"), "betas"),
    "epsilon": "eps",
    **dict.fromkeys(("decay", "rho"), "alpha"),
    **dict.fromkeys(("accumulator", "initial_accumulator"), "initial_accumulator_value"),
    **dict.fromkeys(("wd", "l2_penalty"), "weight_decay"),
    **dict.fromkeys(("foreach", "fused", "capturable", "differentiable"), _SPEED),
    "maximize": "train the negative of the loss instead",
    "decoupled_weight_decay": "optimizer=weft.AdamW(weight_decay=...)",
    **dict.fromkeys(("lr_schedule", "lr_scheduler", "scheduler"), "optimizer=weft.SGD(lr=weft.cosine(...))"),
    **dict.fromkeys(("passes", "num_epochs", "n_epochs", "max_epochs", "num_train_epochs"), "epochs"),
    **dict.fromkeys(("batch", "bs", "per_device_train_batch_size"), "batch_size"),
    **dict.fromkeys(("max_steps", "num_steps"), "steps"),
    "device": "leave it out: workers compute on the device that they were started with, by weft up --device",
    **dict.fromkeys(("verbose", "progress_bar"), "progress"),
    "num_workers": "workers",
    **dict.fromkeys(("early_stopping", "callbacks"), "stop_when='loss:3'"),
    "rule": "optimizer",
    "average": "ema",
    **dict.fromkeys(("criterion", "loss_fn"), "loss"),
    **dict.fromkeys(("sparse_categorical_crossentropy", "categorical_crossentropy", "crossentropy"), "cross_entropy"),
    "binary_crossentropy": "bce",
    **dict.fromkeys(("mean_squared_error", "mse_loss"), "mse"),
    **dict.fromkeys(("mean_absolute_error", "mae", "l1_loss"), "l1"),
    **dict.fromkeys(("acc", "sparse_categorical_accuracy", "categorical_accuracy", "binary_accuracy"), "accuracy"),
    **dict.fromkeys(("gradient_accumulation_steps", "accumulate_grad_batches"), "accumulate"),
    **dict.fromkeys(("max_norm", "max_grad_norm", "gradient_clip_val", "clipnorm"), "clip_norm"),
    **dict.fromkeys(("eval", "validation", "val", "test"), "evaluate"),
    **dict.fromkeys(("validation_data", "validation_split"), "data=weft.numpy_data(path, evaluate=(first, last + 1))"),
    **dict.fromkeys(("T_max", "total_iters", "step_size", "decay_steps", "T_0"), "steps"),
    **dict.fromkeys(("eta_min", "end_value", "end_factor"), "end"),
    **dict.fromkeys(("gamma", "decay_rate"), "factor"),
    **dict.fromkeys(("start_factor", "init_value"), "start"),
    "milestones": "factors={1000: 0.1, 2000: 0.1}",
    "warmup_steps": "warmup",
}
"""Words of PyTorch, Keras, optax and of weft before -> weft's own, or what to write or do instead."""


def said_here(word: str) -> str:
    """The word of this library for one of another; the same where there is none."""
    return _OF_OTHERS.get(word, word)


def nearest(word: str, known: Collection[str]) -> str:
    """`; did you mean 'lr'?` of the words that are known here, for one that is spelt almost like one of them, or like
    another library's for it; empty where none is."""
    from weft_graph.spelling import did_you_mean

    said = said_here(word)
    if said != word and said in known:
        return f"; did you mean {said!r}?"
    return did_you_mean(word, known, {other: own for other, own in _OF_OTHERS.items() if own in known})


def sentence(entry: ErrorDetails, called: Mapping[str, str] = MappingProxyType({})) -> str:
    """One of pydantic's errors: `batch_size is 0; it should be greater than or equal to 1`. `called` has other names
    for fields, such as the variables that set them."""
    said = plain(entry["msg"])
    # No field: what has a blank, a kind among several that a value may be of, and an optimizer's name.
    loc = entry["loc"][:1] + entry["loc"][2:] if entry["loc"][:1] == ("optimizer",) else entry["loc"]
    *path, last = [place for place in loc if " " not in str(place)] or ("",)
    places = [*path, last]
    places[0] = called.get(str(places[0]), places[0])
    where = f"a name in {path[0]}" if last == "[key]" else _path(places)
    if entry["type"] == "missing":
        return f"{where} is missing"
    if entry["type"] == "extra_forbidden":
        return f"{f'{_path(places[:-1])} has' if path else 'there is'} no field {last!r}"
    if entry["type"] == "string_pattern_mismatch" and "A-Za-z" in said:
        said = NAME_RULE
    elif said.endswith("'^https?://'"):
        said = "it should begin with http:// or https://"
    elif entry["type"] == "path_not_directory":
        said = "there is no such directory; make it first"
    elif entry["type"] == "tuple_type":
        said = "it should be a tuple of numbers"
    elif said.endswith("discriminator 'schedule'") or (
        "a number" in entry["loc"] and entry["type"] in {"float_type", "float_parsing"}
    ):
        said = "it should be a number, or a schedule such as weft.cosine(...)"
    elif entry["type"] == "union_tag_not_found":
        said = f"its {entry['ctx']['discriminator']} is missing"
    return f"{where} is {entry['input']!r}; {said}" if where else said


def plain(said: str) -> str:
    """What pydantic says of a value, as a sentence about it: `it should be a valid number`."""
    told = said.replace("Value error, ", "").partition(", unable to parse")[0]
    return re.sub(r"\b(Input|String|URL) should", "it should", told)


def setting_sentences(error: ValidationError, given: Collection[str], prefix: str) -> list[str]:
    """What is wrong with a daemon's settings, by the options and variables that say them; `given` are options."""
    names = {str(one["loc"][0]) for one in error.errors() if one["loc"]}
    said = {name: f"--{name.replace('_', '-')}" if name in given else f"{prefix}{name.upper()}" for name in names}
    return [sentence(one, said) for one in error.errors(include_url=False)]


def _path(places: Sequence[int | str]) -> str:
    """`data.columns`, `betas[1]`."""
    return "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in places).removeprefix(".")
