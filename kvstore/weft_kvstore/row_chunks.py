"""Chunks of rows and of ids as bytes: see `row_cut` for how they are cut. What comes is checked before it is used."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from weft_graph.weft_domain import ID_BYTES
from weft_kvstore.codec import ProtocolError
from weft_kvstore.push_run import Run
from weft_kvstore.row_cut import RowCut, chunks_of
from weft_kvstore.rows import Rows
from weft_kvstore.store import Array


def packed(rows: Rows, cut: RowCut, picked: Array | None = None) -> Array:
    """The bytes of chunks one after the other, each [ids][values], of all rows or of those at positions `picked` (m)
    int64. Values are copied once, to where they leave from."""
    count = len(rows.ids) if picked is None else len(picked)
    made = np.empty(count * (ID_BYTES + cut.row_bytes), np.uint8)
    values = np.ascontiguousarray(rows.values).reshape(len(rows.ids), cut.width)
    low = 0
    for ids, room in _chunked(made, count, cut):
        high = low + ids.size // ID_BYTES
        some = slice(low, high) if picked is None else picked[low:high]
        ids[:] = np.ascontiguousarray(rows.ids[some]).view(np.uint8).reshape(ids.shape)
        if picked is None:
            room[:] = values[some].reshape(-1).view(np.uint8).reshape(room.shape)
        else:
            _take_into(room, values, picked[low:high], cut)
        low = high
    return made


def unpacked_rows(run: Run, cut: RowCut, shard: int, key: str) -> list[Rows]:
    """The chunks of a run of a push to a shard: places there and values, copied; `key` is the key's name.

    Copied because a small chunk would keep the memory of a whole frame, and all at once. Raises ProtocolError, naming
    the field.
    """
    row = ID_BYTES + cut.row_bytes
    _check_sizes(run, cut.rows_on(shard), cut.rows_up, row, key)
    count = run.payload.nbytes // row
    ids, values = np.empty(count, cut.id_dtype), np.empty((count, cut.width), cut.dtype)
    low = 0
    for of_ids, of_values in _chunked(np.frombuffer(run.payload, np.uint8), count, cut):
        high = low + of_ids.size // ID_BYTES
        ids[low:high].view(np.uint8).reshape(of_ids.shape)[:] = of_ids
        values[low:high].reshape(-1).view(np.uint8).reshape(of_values.shape)[:] = of_values
        low = high
    places = _places(ids, cut.rows_up, cut, shard, key)
    return [
        Rows(places[begin : begin + cut.rows_up], values[begin : begin + cut.rows_up])
        for begin in range(0, max(count, 1), cut.rows_up)
    ]


def unpacked_ids(run: Run, cut: RowCut, shard: int, key: str) -> list[Array]:
    """The chunks of a run of a pull's ids, as places on the shard. Raises ProtocolError, naming the field."""
    _check_sizes(run, cut.rows_on(shard), cut.ids_up, ID_BYTES, key)
    ids = np.frombuffer(run.payload, cut.id_dtype).copy()  # As above.
    places = _places(ids, cut.ids_up, cut, shard, key)
    return [places[begin : begin + cut.ids_up] for begin in range(0, max(len(ids), 1), cut.ids_up)]


def _chunked(flat: Array, count: int, cut: RowCut) -> Iterator[tuple[Array, Array]]:
    """Views of the ids' bytes and of the values' bytes of so many rows: (chunks, bytes) of all full chunks together,
    then of the rest."""
    full, left = divmod(count, cut.rows_up)
    head = full * cut.chunk_bytes
    for part, chunks, rows in ((flat[:head], full, cut.rows_up), (flat[head:], 1, left)):
        if chunks and rows:
            both = part.reshape(chunks, rows * (ID_BYTES + cut.row_bytes))
            yield both[:, : rows * ID_BYTES], both[:, rows * ID_BYTES :]


def _take_into(room: Array, values: Array, picked: Array, cut: RowCut) -> None:
    """Takes rows (n, width) into the bytes of their chunks (chunks, bytes)."""
    rows = room.shape[1] // max(cut.row_bytes, 1)
    for number, one in enumerate(room):
        some = picked[number * rows : (number + 1) * rows]
        # `mode` is what lets NumPy write into `out` without a copy; no position is outside.
        values.take(some, axis=0, out=one.view(cut.dtype).reshape(len(some), cut.width), mode="clip")


def check_chunks(rows: int, a_chunk: int, chunks: int, key: str) -> None:
    """Raises ProtocolError for a number of chunks that distinct rows cannot fill."""
    if not 1 <= chunks <= chunks_of(rows, a_chunk):
        raise ProtocolError(f"chunks: {chunks} of key {key!r}; its {rows} rows here take {chunks_of(rows, a_chunk)}")


def _check_sizes(run: Run, rows: int, a_chunk: int, row: int, key: str) -> None:
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


def _places(ids: Array, a_chunk: int, cut: RowCut, shard: int, key: str) -> Array:
    """The places of ids (n), which ascend within each chunk. May be the same array."""
    if not ids.size:
        return ids
    ascends = ids[1:] > ids[:-1]
    ascends[a_chunk - 1 :: a_chunk] = True  # What is between two chunks is told by whoever has those beside them.
    if not ascends.all():
        raise ProtocolError(f"ids: rows of key {key!r} that do not ascend")
    least, most = int(ids.min()), int(ids.max())
    if cut.growth is None and not 0 <= least <= most < cut.rows:
        raise ProtocolError(f"ids: rows {least} to {most} of key {key!r}, which has {cut.rows}")
    if cut.shards == 1:
        return ids
    if not cut.ids_on(shard, ids).all():
        raise ProtocolError(f"ids: rows of key {key!r} that are not on shard {shard} of {cut.shards}")
    return ids if cut.growth is not None else ids // cut.shards
