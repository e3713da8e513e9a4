"""The networked store: one slot's connections to all shards, and the threads that drive them.

`StoreClient` makes an operation of each call and hands it to `ClientCore`, which decides what is sent to which shard,
and when, and takes in what comes back. `ClientSockets` carries that out. The thread that does so is the caller that
waits for a result, or else a thread of the client's own.

Read `calls` (what a caller begins) and `store_client` (how a client is put together); then the state machines, which
have no sockets, threads or clocks: `connection` (the life of a connection), `link` (what is under way on it and is sent
again), `replies` (what comes back), `protocol` (all of it together); last what drives them: `memory` (arrays shared
with shards of the same host), `sockets`, `poller`.
"""
