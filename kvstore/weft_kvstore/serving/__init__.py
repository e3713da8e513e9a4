"""The shard as a process: its socket and threads, the daemon, metrics.

Read `shard_server` (the thread that receives, works and answers), `apply_pool` (threads that help with updates),
`stand_alone` (a shard without a cluster), `daemon` (shards of jobs that a server hands out) and `metrics`.
"""
