"""What PyTorch and its exporter say where they fail, in one sentence with the remedy."""

from __future__ import annotations

import re
import traceback
from typing import Final

_REMEDIES: Final = (
    (
        r"FakeTensor",
        "a tensor is read by .data, or made in forward: use .detach(), or register it as a buffer",
    ),
    (
        r"DynamicCache|past_key_values|EncoderDecoderCache|Cache\b",
        "call the model with use_cache=False, in a module whose forward returns tensors",
    ),
    (
        r"distribution\.py|constraints\.py",
        "pass validate_args=False to distributions: their checks look at values",
    ),
    (
        r"grouped_mm|experts|[Mm]oe\b",
        'for a mixture of experts of transformers: model.set_experts_implementation("batched_mm")',
    ),
    (
        r"masking_utils|sdpa_mask|vmap",
        'build the model with attn_implementation="eager": its masks are computed in a way that cannot be exported',
    ),
    (
        r"GuardOnDataDependent|data-dependent|Could not guard|unbacked|\bu\d+\b",
        "what is computed, or its size, depends on values: write it with torch.where and masks, for all samples alike",
    ),
    (
        r"Constraints violated|[Ss]pecializ|dynamic_shapes|dynamic shapes|Not all values of|mark_dynamic",
        "the batch cannot have any size: write what makes a number of it otherwise, or pass as dynamic what "
        "torch.export takes as dynamic_shapes",
    ),
    (
        r"No ONNX function|DispatchError|No decompositions|not supported|ConversionError|NotImplementedError",
        "one of its operators has no form in ONNX: write it with others",
    ),
)
"""What the exporter says -> what helps."""


def refusal(error: Exception) -> str:
    """One sentence of the exporter's, and the remedy."""
    whole = chain(error)
    operator = re.search(r"No ONNX function found for <OpOverload\(op='([\w.]+)'", whole)
    remedy = next((remedy for pattern, remedy in _REMEDIES if re.search(pattern, whole)), "")
    what = f"no ONNX form of {operator[1]}" if operator else said(error)
    ends = f". {remedy[0].upper()}{remedy[1:]}" if remedy else ""
    return f"PyTorch cannot export the module: {what}{ends}. `reason` of this error has all that the exporter said"


def said(error: Exception) -> str:
    """The innermost exception in its own words, a line of them, and the line of a module's that led to it."""
    inner: BaseException = error
    while (inner.__cause__ or inner.__context__) is not None:
        inner = inner.__cause__ or inner.__context__  # type: ignore[assignment]
    lines = [line.strip() for line in str(inner).splitlines() if line.strip()]
    first = next((line for line in lines if not line.startswith(("-", "#", "⬆", "<", "*"))), "")
    first = first if len(first) <= 200 else first[:200].rpartition(". ")[0] or f"{first[:200]} ..."
    return (f"{type(inner).__name__}: {first}" if first else type(inner).__name__) + _place(inner)


def _place(error: BaseException) -> str:
    """` (net.py:12, in Net.forward)`: the innermost method of a module that PyTorch has not written."""
    found = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        module, package = frame.f_locals.get("self"), str(frame.f_globals.get("__name__")).partition(".")[0]
        if hasattr(module, "named_parameters") and package not in {"torch", "weft"}:
            file = frame.f_code.co_filename.rpartition("/")[2]
            found = f" ({file}:{line}, in {type(module).__name__}.{frame.f_code.co_name})"
    return found


def chain(error: BaseException) -> str:
    """All that an exception and its causes say."""
    parts: list[str] = []
    seen: BaseException | None = error
    while seen is not None and len(parts) < 16:
        frames = seen.__traceback__
        files = []
        while frames is not None:
            files.append(frames.tb_frame.f_code.co_filename.rpartition("/")[2])
            frames = frames.tb_next
        parts.append(f"{type(seen).__name__}: {seen}\n(in {', '.join(dict.fromkeys(files))})")
        seen = seen.__cause__ or seen.__context__
    return "\n".join(parts)


def cause(error: BaseException, kind: type[BaseException]) -> BaseException | None:
    """The exception of that kind behind another."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, kind):
            return seen
        seen = seen.__cause__ or seen.__context__
    return None
