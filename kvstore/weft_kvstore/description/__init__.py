"""What a store is: its keys, shards, slots, and how keys are updated.

A user's document, in Python or in a file, is filled in and checked, and becomes the records that every process of a
store is given; processes compare a digest of the records.

Read `records` (the result), `check` (what it must fulfil, and its limits) and `form` (what users write: `describe`, and
files).
"""
