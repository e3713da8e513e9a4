"""Chunks of rows and of ids as bytes: see `row_cut` for how they are cut. What comes is checked before it is used."""

from __future__ import annotations

import numpy as np

from weft_graph.weft_domain import ID_BYTES
from weft_kvstore.codec import ProtocolError
from weft_kvstore.push_run import Run
from weft_kvstore.row_cut import RowCut, chunks_of
from weft_kvstore.rows import Rows, is_ascending
from weft_kvstore.store import Array


def packed(rows: Rows, cut: RowCut, picked: Array | None = None) -> Array:
    """The bytes of chunks one after the other, each [ids][values], of all rows or of those at positions `picked` (m)
    int64. Values are copied once, to where they leave from."""
    count = len(rows.ids) if picked is None else len(picked)
    ids = np.ascontiguousarray(rows.ids if picked is None else rows.ids[picked]).view(np.uint8)
    values = np.ascontiguousarray(rows.values).reshape(len(rows.ids), cut.width)
    made = np.empty(count * (ID_BYTES + cut.row_bytes), np.uint8)
    for index, low in enumerate(range(0, count, cut.rows_up)):
        high = min(low + cut.rows_up, count)
        chunk = made[index * cut.chunk_bytes : (index + 1) * cut.chunk_bytes]
        of_ids = (high - low) * ID_BYTES
        chunk[:of_ids] = ids[low * ID_BYTES : high * ID_BYTES]
        room = chunk[of_ids:].view(cut.dtype).reshape(high - low, cut.width)
        if picked is None:
            room[:] = values[low:high]
        else:  # `mode` is what lets NumPy write into `out` without a copy; no position is outside.
            values.take(picked[low:high], axis=0, out=room, mode="clip")
    return made


def unpacked_rows(run: Run, cut: RowCut, shard: int, key: str) -> list[Rows]:
    """The chunks of a run of a push to a shard: places there and values, copied; `key` is the key's name.

    Copied because a small chunk would keep the memory of a whole frame. Raises ProtocolError, naming the field.
    """
    row = ID_BYTES + cut.row_bytes
    parts = _parts(run, cut.rows_on(shard), cut.rows_up, row, key)
    values: Array = np.empty((run.payload.nbytes // row, cut.width), cut.dtype)
    found: list[Rows] = []
    low = 0
    for part in parts:
        count = part.nbytes // row
        places = _places(part[: count * ID_BYTES], cut, shard, key)
        own = values[low : low + count]
        own[:] = np.frombuffer(part[count * ID_BYTES :], cut.dtype).reshape(count, cut.width)
        found.append(Rows(places, own))
        low += count
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
