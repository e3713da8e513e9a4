"""What a shard merges as one: whole keys and tables."""
