"""What a store is: its keys, shards, slots, and how keys are updated.

Users write a short form, in Python or in a file. It is filled in, checked, and becomes the records that every process
of a store is given; a digest of the records tells processes whether they agree.

Read `records` (the result), `check` (what it must fulfil, and its limits) and `form` (what users write: `describe`, and
files).
"""
