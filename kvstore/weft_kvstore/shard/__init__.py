"""All that a shard decides: connections, its job, merging, answers. No sockets, threads or clocks.

`ShardCore` takes messages and the time in and says which messages leave. Frames of gradients go to the job's buckets
and tables; what is complete is merged, the most urgent first; and answers leave as far as each client's credit allows.

Read `core` (the whole, and what each message does), `peer` (a client, and its Hello), `pushes` (frames of gradients and
values, pulls, and what leaves), `job_shard` (the job's part of the shard), `parts` (its buckets and tables) and
`merger` (the work).
"""
