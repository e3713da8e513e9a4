"""What other libraries call the fields of a job and the arguments of the SDK; messages of both name weft's own."""

from __future__ import annotations

from collections.abc import Mapping

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
