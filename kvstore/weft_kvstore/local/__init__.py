"""The store of one process: the shard's state machine, without messages.

Read `core` (all slots' operations on one `JobShard`, merged and answered) and `local_store` (the calls, and the thread
that works).
"""
