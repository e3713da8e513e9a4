"""A slot's way to its shards: operations, and the connections and threads that carry them out.

An operation is cut for the shards by a plan that is made once for its keys. It says what is sent on each link, and
takes in what comes back. Who submits it has checked it against the description. `ClientCore` decides which message goes
to which shard, and when; `ClientSockets` carries that out, on the thread of the caller that waits for a result, or on
one of the client's own. The local store begins the same operations on a shard of its own process.

Read in the order of a call. `plan` (keys by name, and where they lie on the shards) and `encoders` (their encodings),
`operation` (what all operations are, and pushes and pulls), `agreement` (barriers, commits, hyper-parameters). Then the
state machines, without sockets, threads or clocks: `link` (the life of a connection, what is under way on it and is
sent again), `core` (what comes back, the order of calls, and all of it together). Last what drives them: `sockets`,
`poller` and `store_client`, which says what a store is, and puts a client together.
"""
