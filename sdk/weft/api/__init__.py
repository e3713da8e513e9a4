"""The pydantic models of the HTTP API: the one source of truth for server, worker, shard and SDK."""
