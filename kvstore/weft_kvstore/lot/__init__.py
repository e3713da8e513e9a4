"""A plain lot on its shard: keys that are updated alike, by runs of slices."""
