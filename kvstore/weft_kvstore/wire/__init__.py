"""What client and shard say to each other: messages, their bytes, and the queue at the sending end of a link.

Read `messages` (every message; `docs/wire.md` describes the format), `codec` (to bytes and back, checked; slices and
rows in a frame), and for the sending end `outbox` (what is to be sent, what next, and how much may be under way).
"""
