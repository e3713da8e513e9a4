"""The shard as a process: its socket and threads, the daemon, metrics.

Read `shard_server` (the thread that receives, works and answers, and those that help it with updates), `stand_alone`
(a shard without a cluster), `daemon` (shards of jobs that a server hands out) and `metrics`.
"""
