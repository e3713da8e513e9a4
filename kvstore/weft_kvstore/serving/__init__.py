"""The shard as a process.

Read `shard_server` (the thread that receives, works and answers, and whom steps wait for), `connections` (its socket,
and which connections are closed), `shard_process` (a daemon's child, or a shard without a cluster), `daemon` (settings,
and a child for each job that a server hands out), `metrics`, and `holdings` (what `--check` prints).
"""
