"""The shard's mind: connections, jobs, turns, quotas, merging, answers; no sockets, no threads."""
