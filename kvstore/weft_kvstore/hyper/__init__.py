"""Hyper-parameters of keys, and how shards agree on their changes."""
