"""What client and shard say to each other: messages, their bytes, and the queue at the sending end of a link.

Read `messages` (every message; `docs/wire.md` describes the format), `codec` (to bytes and back, checked), `runs`
(slices and rows in a frame), and for the sending end `out_run` (what is to be sent), `rate` (how much may be under way)
and `outbox` (what is sent next).
"""
