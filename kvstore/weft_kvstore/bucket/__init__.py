"""A bucket on its shard: dense keys that are updated alike, side by side in one array.

Slices of gradients come in by slot. Once all of a step are in, or as they come in async and stale mode, their
sum is measured where the description asks for it, and the update rule changes the values; pulls that wait for the new
version are answered. All of this works on ranges of slices at once, and none of it has sockets, threads or clocks.

Read `steps` (which steps are in, and the pushes and pulls that wait; a table's too), `bucket` (the way of a step: what
comes, what is applied, what answers a pull), then what it is made of: `values` (gradients and their sum, values, plain
and encoded, and pins of what is being sent), `update` (the rule), `gate` (steps that all shards commit together) and
`sets` (values that were set).
"""
