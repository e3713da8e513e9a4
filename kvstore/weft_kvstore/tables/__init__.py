"""Tables on a shard: where their rows are, and when they come and go."""
