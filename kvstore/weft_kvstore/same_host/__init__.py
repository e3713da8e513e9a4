"""Payloads between processes of one host pass through memory that both have mapped; messages stay on ZeroMQ.

A client process has one *arena*: sealed anonymous memory with fixed *places* for each key's gradients and values, and
*spare* parts through which every other payload passes. Every shard on its host is given the same arena, through a Unix
socket whose name the shard tells in its Welcome: the *listener*. From then on a message may say where in the arena its
payload is.

Read `layout` (where payloads lie, and how links and shards lay and read them; pure), `memory` (the mapped memory, what
is checked of another's, and the arrays that a client gives out) and `handover` (how the arena gets to a shard).
"""
