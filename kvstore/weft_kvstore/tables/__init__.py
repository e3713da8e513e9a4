"""Tables on a shard: rows that are pushed, set and pulled, step by step.

A push of rows comes in chunks. Once every slot's push of a step is in, the rows are added up and the update rule
changes those rows alone. Which rows there are, and where, is in `rows`; the steps are counted as a bucket's are.

Read `steps` (pushes put together from chunks, and the sum of a step) and `state` (the update, values that are set,
pulls).
"""
