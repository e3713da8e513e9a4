"""Chunks of rows and of ids as bytes: see `row_cut` for how they are cut. What comes is checked before it is used."""

from __future__ import annotations

import numpy as np

from weft_graph.weft_domain import ID_BYTES
from weft_kvstore.codec import ProtocolError
from weft_kvstore.push_run import Run
from weft_kvstore.row_cut import RowCut, chunks_of
from weft_kvstore.rows import Rows, is_ascending
from weft_kvstore.store import Array


def packed(rows: Rows, cut: RowCut) -> Array:
    """The bytes of chunks one after the other, each [ids][values]."""
    count = len(rows.ids)
    ids = np.ascontiguousarray(rows.ids, np.int64).view(np.uint8).reshape(count, ID_BYTES)
    values = np.ascontiguousarray(rows.values).view(np.uint8).reshape(count, cut.row_bytes)
    made = np.empty(count * (ID_BYTES + cut.row_bytes), np.uint8)
    full = count // cut.rows_up
    end = full * cut.rows_up
    _pack(made[: full * cut.chunk_bytes], ids[:end], values[:end], full)
    _pack(made[full * cut.chunk_bytes :], ids[end:], values[end:], 1)
    return made


def unpacked_rows(run: Run, cut: RowCut, shard: int, key: str) -> list[Rows]:
    """The chunks of a run of a push to a shard: places there and values, copied; `key` is the key's name.

    Copied because a small chunk would keep the memory of a whole frame. Raises ProtocolError, naming the field.
    """
    row = ID_BYTES + cut.row_bytes
    found: list[Rows] = []
    for part in _parts(run, cut.rows_on(shard), cut.rows_up, row, key):
        rows = part.nbytes // row
        places = _places(part[: rows * ID_BYTES], cut, shard, key)
        values: Array = np.frombuffer(part[rows * ID_BYTES :], cut.dtype).reshape(rows, cut.width)
        found.append(Rows(places, values.copy()))
    return found


def unpacked_ids(run: Run, cut: RowCut, shard: int, key: str) -> list[Array]:
    """The chunks of a run of a pull's ids, as places on the shard. Raises ProtocolError, naming the field."""
    return [_places(part, cut, shard, key) for part in _parts(run, cut.rows_on(shard), cut.ids_up, ID_BYTES, key)]


def check_chunks(rows: int, a_chunk: int, chunks: int, key: str) -> None:
    """Raises ProtocolError for a number of chunks that distinct rows cannot fill."""
    if not 1 <= chunks <= chunks_of(rows, a_chunk):
        raise ProtocolError(f"chunks: {chunks} of key {key!r}; its {rows} rows here take {chunks_of(rows, a_chunk)}")


def _parts(run: Run, rows: int, a_chunk: int, row: int, key: str) -> list[memoryview]:
    check_chunks(rows, a_chunk, run.chunks, key)
    named = f"chunks {run.first} to {run.stop - 1}"
    if run.stop > run.chunks:
        raise ProtocolError(f"Push.first: {named} of key {key!r}, there are {run.chunks}")
    full = a_chunk * row
    nbytes = run.payload.nbytes
    last = nbytes - (run.count - 1) * full
    whole = run.stop < run.chunks
    fits = last == full if whole else 0 <= last <= full and last % row == 0 and (last > 0 or run.chunks == 1)
    if not fits:
        told = f"{named} of {run.chunks} of key {key!r}, {full} bytes a full one"
        raise ProtocolError(f"Push.nbytes: {nbytes} for {told}")
    return [run.payload[index * full : min((index + 1) * full, nbytes)] for index in range(run.count)]


def _places(part: memoryview, cut: RowCut, shard: int, key: str) -> Array:
    ids: Array = np.frombuffer(part, cut.id_dtype)
    if not ids.size:
        return ids
    if not is_ascending(ids):
        raise ProtocolError(f"ids: rows of key {key!r} that do not ascend")
    if cut.growth is None and not 0 <= ids[0] <= ids[-1] < cut.rows:
        raise ProtocolError(f"ids: rows {ids[0]} to {ids[-1]} of key {key!r}, which has {cut.rows}")
    if cut.shards > 1 and not cut.ids_on(shard, ids).all():
        raise ProtocolError(f"ids: rows of key {key!r} that are not on shard {shard} of {cut.shards}")
    return cut.places_of(ids)


def _pack(made: Array, ids: Array, values: Array, chunks: int) -> None:
    if not made.size:
        return
    of_ids = ids.size // chunks
    chunk = made.reshape(chunks, -1)
    chunk[:, :of_ids] = ids.reshape(chunks, of_ids)
    chunk[:, of_ids:] = values.reshape(chunks, -1)
