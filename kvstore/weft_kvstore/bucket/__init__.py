"""A bucket on its shard: dense keys that are updated alike, side by side in one array.

Slices of gradients come in by slot. Once a step is complete, or as they arrive, they are added up, measured where the
description asks for it, and the update rule changes the values; pulls that wait for the new version are answered. All
of this works on runs of slices at once, and none of it has sockets, threads or clocks.

Read `bucket` (pulls and what answers them, and a bucket made from the description), `state` (the way of a step: what is
in, what is refused, what is applied), then its parts: `sets` (values that were set), `sums` (gradients added in order),
`gate` (steps that all shards commit together) and `update` (the arrays, plain and encoded, and the rule). What is in
`bucket` of a pull, and of long work between whose pieces the socket is served, is for tables too.
"""
