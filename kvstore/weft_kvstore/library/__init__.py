"""`KVStore`, the store for plain Python programs: keys by name, steps that are counted, users' arrays.

A call looks its keys up, checks and copies the user's arrays, takes the key's next step, and hands the result to a
`Store`, the networked or the local one. A push that fails is remembered, and the next push of the key raises. A call
of keys that were given before goes from `kvstore` to `steps` at once.

Read `kvstore` (the public class), `key_registry` (keys by name, and at which step each is), `steps` (steps that were
begun, failed pushes, barriers), `arrays` (NumPy, PyTorch, CuPy) and `calls` (all calls on values and on rows).
"""
