"""All that a shard decides: connections, its job, merging, answers. No sockets, threads or clocks.

`ShardCore` takes messages and the time in and says which messages leave. Frames of gradients go to the job's buckets
and tables; what is complete is merged, the most urgent first; and answers leave as far as each client's credit allows.

Read `core` (what each message does), `job_shard` (the job's buckets and tables), `merger` (what comes to them, and the
work), `peer` (a client, and what leaves for it), `links` (how clients begin and end) and `snapshot`.
"""
