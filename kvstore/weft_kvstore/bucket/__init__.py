"""A bucket on its shard: dense keys that are updated alike, side by side in one array.

Slices of gradients come in by slot. Once a step is complete, or as they arrive, they are added up, measured where the
description asks for it, and the update rule changes the values; pulls that wait for the new version are answered. All
of this works on runs of slices at once, and none of it has sockets, threads or clocks.

Read `bucket` (a bucket made from the description, and the pulls that wait for it), `state` (the way of a step), then
its parts: `steps` (what is in, and values that were set), `sums` (gradients added in order) and `update` (the arrays,
plain and encoded, and the rule). `gate` (steps that all shards commit together) and `waiting` (a pull and its answers;
long work, cut so that the socket is served between two pieces) are for tables too.
"""
