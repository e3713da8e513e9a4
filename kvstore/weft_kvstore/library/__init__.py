"""`KVStore`, the store for plain Python programs: keys by name, steps that are counted, users' arrays.

A call looks its keys up, checks and copies the user's arrays, takes the key's next step, and becomes an operation of a
`Store`, the networked or the local one. Keys that were looked up are remembered, so that a call that was made
before checks its arrays alone. A push that fails is remembered, and the next push of the key raises.

Read `kvstore` (the public class), `calls` (what a call gives, which steps were begun, failed pushes), `row_calls` (what
one of rows gives), `waits` (for shards, barriers) and `user_arrays` (NumPy, PyTorch, CuPy).
"""
