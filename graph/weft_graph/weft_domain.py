"""The operators of weft's own domain: what each reads, writes and means. Most are the converter's alone.

| Operator | Inputs | Outputs | Attributes | Meaning |
|---|---|---|---|---|
| Fetch | - | value | key, priority | the value of `key` at the step's version; runs on the IO lane |
| Send | gradient | - | key, priority | pushes this step's gradient of `key` as soon as it exists; IO lane |
| FetchRows | ids | rows | key, priority | the rows `ids` (n) int64 of the table `key` at the step's version; IO lane |
| SendRows | ids, gradient | - | key, priority | pushes this step's gradient of the rows `ids` of `key`; IO lane |
| UniqueRows | ids ... | rows_ids, index ... | see its schema | distinct rows of a table that a step reads; a kernel |
| Embedding | table, ids | rows | padding_id | rows of `table`, zeros for the padding; a kernel; users' too |
| StopGradient | X | Y | - | Y = X, and no gradient flows back; a kernel; users' too |
| Copy | value | value | source, target, priority | the value on another device of the same worker; a kernel |
| Transfer | value | value | source, target, priority | the value on another worker, which runs another stage; IO lane |
| Fused | values ... | value | body | pointwise nodes as one, which is run in pieces that stay in a cache; a kernel |
| Session | values ... | values ... | body | nodes as one, which onnxruntime computes; a kernel; bind makes it |
| SendBarrier | - | - | keys | tells every shard that this slot has sent all of the step; IO lane, after all Sends |

Rows of FetchRows and SendRows are distinct and ascending, as UniqueRows makes them; -1 behind them is padding: its row
is zero, and it neither travels nor trains.

`source` and `target` of Copy and Transfer are places, see `weft_graph.passes.places`; `priority` counts them in the
order in which they are read, 0 the most urgent.

`keys` of SendBarrier are those that the program has no Send for: the barrier declares that this slot has nothing for
them at any step, as far as the store waits for this slot to say so.

Further operators of this domain are gradients' bodies that ONNX has no word for. What computes has a schema of its own
in `weft_graph.operators`, marked by this domain. A user's graph may hold Embedding and StopGradient, and none of the
others.
"""

from __future__ import annotations

from typing import Final

from weft_graph.ir import WEFT_DOMAIN, Node

FETCH: Final = "Fetch"
SEND: Final = "Send"
FETCH_ROWS: Final = "FetchRows"
SEND_ROWS: Final = "SendRows"
SEND_BARRIER: Final = "SendBarrier"
UNIQUE_ROWS: Final = "UniqueRows"
EMBEDDING: Final = "Embedding"
STOP_GRADIENT: Final = "StopGradient"

COPY: Final = "Copy"
TRANSFER: Final = "Transfer"
FUSED: Final = "Fused"
SESSION: Final = "Session"

ID_BYTES: Final = 8
"""Of a row's id, int64, in memory and on the wire."""

COMMUNICATION: Final = frozenset({FETCH, SEND, FETCH_ROWS, SEND_ROWS, SEND_BARRIER, TRANSFER})
"""Operators that the worker carries out with the store or other workers; they have no schema and no kernel."""

USERS: Final = frozenset({EMBEDDING, STOP_GRADIENT})
"""Operators of this domain that a user's graph may hold."""


def is_communication(node: Node) -> bool:
    """Whether the worker carries the node out with the store or other workers."""
    return node.domain == WEFT_DOMAIN and node.op_type in COMMUNICATION
