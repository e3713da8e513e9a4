"""What a caller begins, until it ends: an operation for each push, pull, barrier, commit or change.

A call is checked against the description, cut for the shards by a plan that is made once for its keys, and becomes an
operation. The operation says what is sent on each link, and takes in what comes back. There are no sockets here; a
client or the local store drives the operations.

Read `arguments` (checks), `plan` and `runs` (where keys lie on the shards, and their bytes), `operation` (what all
operations are), `keys` and `row_operation` (pushes and pulls), `agreement` (barriers, commits, hyper-parameters),
`ordering` (sets and consistent reads) and `encoding` (compressed gradients).
"""
