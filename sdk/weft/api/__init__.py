"""The HTTP API, as both of its sides see it.

The pydantic models, the one source of truth for server, worker, shard and SDK: `agent`, `data`, `dry_run`, `event`,
`job`, `problem`, `rule`, `store`, `values`, and the transition tables in `lifecycle`. An agent's side of the protocol
is `weft.agent`, the SDK's own client `weft.client`.
"""
