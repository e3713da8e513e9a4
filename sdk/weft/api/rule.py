"""How parameters are updated on the shards."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from weft.api.base import Model

Rate = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]
Decay = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]


class Sgd(Model):
    """w -= rate * (g + weight_decay * w), with momentum m: v = m * v + g; w -= rate * v."""

    name: Literal["sgd"] = "sgd"
    rate: Rate = 0.01
    momentum: Decay = 0.0
    weight_decay: Annotated[float, Field(ge=0, le=1e3, allow_inf_nan=False)] = 0.0


class Adam(Model):
    """Adam with bias correction, Kingma and Ba 2015, algorithm 1."""

    name: Literal["adam"] = "adam"
    rate: Rate = 0.001
    beta1: Decay = 0.9
    beta2: Decay = 0.999
    epsilon: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] = 1e-8


RuleSpec = Annotated[Sgd | Adam, Field(discriminator="name")]
