"""The operators that only the converter writes, whole: what each reads, writes and means.

| Operator | Inputs | Outputs | Attributes | Meaning |
|---|---|---|---|---|
| Fetch | - | value | key, priority | the value of `key` at the step's version; runs on the IO lane |
| Send | gradient | - | key, priority | pushes this step's gradient of `key` as soon as it exists; IO lane |
| SendBarrier | - | - | keys | tells every shard that this slot has sent all of the step; IO lane, after all Sends |

`keys` of SendBarrier are those that the program has no Send for: the barrier declares that this slot has nothing for
them at any step, as far as the store waits for this slot to say so.

Further operators of this domain are gradients' bodies that ONNX has no word for; each has a schema of its own in
`weft_graph.operators`, marked by this domain. A user's graph may hold none of them.
"""

from __future__ import annotations

from typing import Final

FETCH: Final = "Fetch"
SEND: Final = "Send"
SEND_BARRIER: Final = "SendBarrier"

COMMUNICATION: Final = frozenset({FETCH, SEND, SEND_BARRIER})
"""Operators that the worker carries out with the store; they have no schema and no kernel."""
