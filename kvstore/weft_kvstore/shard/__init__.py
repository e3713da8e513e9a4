"""All that a shard decides: connections, jobs, quotas, merging, answers. No sockets, threads or clocks.

`ShardCore` takes messages and the time in and says which messages leave. A message waits in the inbox until it is its
job's turn; frames of gradients go to the job's buckets and tables; what is complete is merged, the most urgent first;
and answers leave in turn.

Read `core` (the whole), `peer` (a client, and its Hello), `links` (all clients, and what leaves), `inbox` (what comes),
`pushes` and `handlers` (what each message does), `job_shard` (a job's part of the shard), `parts` (its buckets and
tables), `merger` (the work) and `account` (quotas and turns).
"""
