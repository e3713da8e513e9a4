"""What of a job's gradients and values travels in fewer bytes, and how; the kvstore room reads the same JSON."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from weft.api.base import Model, one_of

LEAST_BYTES: Final = 16 << 10

_NONE: Final[dict[str, Any]] = {"type": "null"}
_BY_KIND: Final[dict[str, Any]] = {
    "oneOf": [
        {"properties": {"kind": {"enum": ["bf16", "fp16"]}, "threshold": _NONE, "ratio": _NONE, "count": _NONE}},
        {
            "required": ["threshold"],
            "properties": {
                "kind": {"const": "2bit"},
                "threshold": {"type": "number"},
                "ratio": _NONE,
                "count": _NONE,
                "residual": {"const": True},
            },
        },
        {
            "properties": {"kind": {"const": "topk"}, "threshold": _NONE, "residual": {"const": True}},
            **one_of(ratio="number", count="integer"),
        },
    ]
}
_WHOLE: Final[dict[str, Any]] = {
    "properties": {"kind": {"enum": ["bf16", "fp16"]}, "residual": {"const": False}},
    "required": ["residual"],
}


class CompressionSpec(Model):
    """What a slice becomes: 16-bit floats; -threshold, 0 or threshold for each element; or its largest elements.

    What a step leaves out is kept by the sender and added to the next one.
    """

    model_config = ConfigDict(json_schema_extra=_BY_KIND)

    kind: Literal["bf16", "fp16", "2bit", "topk"]
    threshold: Annotated[float, Field(ge=2.0**-126, le=(2 - 2.0**-23) * 2.0**127)] | None = None
    """Of 2bit, in units of the gradient."""
    ratio: Annotated[float, Field(gt=0, le=1)] | None = None
    """Of topk: this part of each slice's elements."""
    count: Annotated[int, Field(ge=1, lt=1 << 31)] | None = None
    """Of topk, instead: so many elements of each slice."""
    residual: bool = True
    """Whether what is left out is kept; bf16 and fp16 can do without."""

    @model_validator(mode="after")
    def _fits_its_kind(self) -> Self:
        for name, kind in (("threshold", "2bit"), ("ratio", "topk"), ("count", "topk")):
            if getattr(self, name) is not None and self.kind != kind:
                raise ValueError(f"{name}: {self.kind} has none")
        if self.kind == "2bit" and self.threshold is None:
            raise ValueError("threshold: 2bit needs one")
        if self.kind == "topk" and (self.ratio is None) == (self.count is None):
            raise ValueError("topk needs either ratio or count")
        if not self.residual and self.kind in {"2bit", "topk"}:
            raise ValueError(f"residual: {self.kind} needs one, or most of a gradient is lost")
        return self


class StoreCompressionSpec(Model):
    """Each direction by itself, none of them unless it is said. Tables, running statistics, types other than float32
    and float64, and small keys travel as they are in any case."""

    model_config = ConfigDict(
        json_schema_extra={"anyOf": [{"properties": {"weights": each}} for each in (_NONE, _WHOLE)]}
    )

    gradients: CompressionSpec | None = None
    """From workers to shards."""
    merged: CompressionSpec | None = None
    """Merged gradients, to workers that update parameters themselves."""
    weights: CompressionSpec | None = None
    """Values that shards update, to workers: bf16 or fp16, without a residual."""
    least_bytes: Annotated[int, Field(ge=0, lt=1 << 62)] = LEAST_BYTES
    """Parameters with fewer bytes travel as they are."""

    @model_validator(mode="after")
    def _weights_are_whole(self) -> Self:
        weights = self.weights
        if weights is not None and (weights.residual or weights.kind not in {"bf16", "fp16"}):
            raise ValueError("weights: bf16 or fp16 with residual false: who reads a weight must read all of it")
        return self
