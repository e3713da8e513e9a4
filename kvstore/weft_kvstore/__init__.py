"""The key-value store: shards that keep parameters and update them, clients that push gradients and pull values."""
