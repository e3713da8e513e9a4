"""The store of one process: the shard's mind without messages."""
