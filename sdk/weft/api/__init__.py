"""The HTTP API, as both of its sides see it.

The pydantic models, the one source of truth for server, worker, shard and SDK: `agent`, `data`, `dry_run`, `event`,
`job`, `problem`, `rule`, `store`, `values`, and the transition tables in `lifecycle`.

Beside them the hands that the worker's and the shard's daemons have in common: `membership` and `reporter` are an
agent's side of the protocol that `agent` describes, `retry` is how both try again, `daemon` is how a process starts and
ends. The SDK's own client of the API is `weft.client`.
"""
