"""The shard as a process.

Read `shard_server` (its socket, the thread that receives, works and answers, and whom steps wait for), `connections`
(those that are no client's), `shard_process` (a daemon's child, or a shard without a cluster), `daemon` (settings, and
a child for each job that a server hands out), `metrics`, and `holdings` (what `--check` prints).
"""
