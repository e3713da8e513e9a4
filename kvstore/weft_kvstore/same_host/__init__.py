"""Payloads between processes of one host pass through memory that both have mapped; messages stay on ZeroMQ.

A client process has one *arena*: sealed anonymous memory with fixed *places* for each key's gradients and values, and a
*spare* part for what has no fixed length. Every shard on its host is given the same arena, through a Unix socket whose
name the shard tells in its Welcome: the *door*. From then on a message may say where in the arena its payload is.

`layout` where the places lie (pure); `place_book`, `spare_space` who has them (pure); `sealed_memory` the memory and
what is demanded of another's; `mapping` arrays in it; `arena` the client's; `key_buffers` arrays that a user fills and
reads in place; `offer` what is said at the door; `handover` the client's end of it; `door` the shard's.
"""
