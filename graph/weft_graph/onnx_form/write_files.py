"""Models written to files, with large values in a file of their own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import onnx

from weft_graph.ir import Graph
from weft_graph.onnx_form.imported import Array
from weft_graph.onnx_form.write_tensors import empty_tensor, raw_bytes, tensor_proto
from weft_graph.onnx_form.writer import WriteOptions, written

EXTERNAL_FROM_BYTES: Final = 3 << 29
"""1.5 GiB: from here on values go to a file beside the model; 2 GiB are protobuf's end."""

_SMALL_BYTES: Final = 1 << 10
"""Values up to here stay in the model: shapes and scalars, which readers look at."""

_ALIGNMENT: Final = 4096
"""Values begin at pages of memory, so that readers may map them."""


def write_file(
    path: Path | str,
    graph: Graph,
    values: Mapping[str, Array],
    options: WriteOptions | None = None,
    *,
    external_from: int = EXTERNAL_FROM_BYTES,
) -> None:
    """Writes the model to `path`, and from `external_from` bytes of values on these to `path` + `.data`.

    Files that are there are replaced once all is written. Raises OnnxError as `write_model`, and OSError.
    """
    path = Path(path)
    model, arrays = written(graph, values, options or WriteOptions())
    is_external = sum(array.nbytes for array in arrays.values()) >= external_from
    data = path.with_name(f"{path.name}.data")
    partial, partial_data = (place.with_name(f"{place.name}.partial") for place in (path, data))
    try:
        if is_external:
            _write_data(model, arrays, partial_data, data.name)
        else:
            for tensor in model.graph.initializer:
                tensor.MergeFrom(tensor_proto(tensor.name, arrays[tensor.name]))
        partial.write_bytes(model.SerializeToString())
        if is_external:
            os.replace(partial_data, data)
        os.replace(partial, path)
    finally:
        for leftover in (partial, partial_data):
            with suppress(FileNotFoundError):
                leftover.unlink()


def _write_data(model: onnx.ModelProto, arrays: Mapping[str, Array], path: Path, location: str) -> None:
    with path.open("wb") as file:
        for tensor in model.graph.initializer:
            array = arrays[tensor.name]
            if array.nbytes <= _SMALL_BYTES:
                tensor.MergeFrom(tensor_proto(tensor.name, array))
                continue
            tensor.MergeFrom(empty_tensor(tensor.name, array))
            tensor.data_location = onnx.TensorProto.EXTERNAL
            file.write(b"\0" * (-file.tell() % _ALIGNMENT))
            raw = raw_bytes(array)
            for key, value in (("location", location), ("offset", file.tell()), ("length", len(raw))):
                tensor.external_data.add(key=key, value=str(value))
            file.write(raw)
