"""`KVStore`, the store for plain Python programs: names, steps, users' arrays."""
