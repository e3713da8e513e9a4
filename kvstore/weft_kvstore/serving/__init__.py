"""The shard as a process.

Read `connections` (its socket), `shard_server` (the thread that receives, works and answers), `shard_process` (a
daemon's child, or a shard without a cluster), `daemon` (settings, and a child for each job that a server hands out),
`metrics`, and `holdings` (what `--check` prints).
"""
