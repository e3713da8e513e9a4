"""Payloads between processes of one host pass through memory that both have mapped; messages stay on ZeroMQ.

A client process has one *arena*: sealed anonymous memory with fixed *places* for each key's gradients and values, and
*spare* parts through which every other payload passes. Every shard on its host is given the same arena, through a Unix
socket whose name the shard tells in its Welcome: the *door*. From then on a message may say where in the arena its
payload is.

`layout` where the places lie (pure); `spare_space` who has the spare parts (pure); `sealed_memory` the memory and what
is demanded of another's; `mapping` arrays in it; `arena` the client's; `offer` what is said at the door; `handover` the
client's end of it; `door` the shard's.

What a store has to do with it (pure): `shared_layout` what of a description lies where in an arena; `link_memory` how a
link uses it, `peer_memory` how a shard does; `hold` what is read where it lies.
"""
