"""A bucket on its shard: dense keys that are updated alike, side by side in one array.

Slices of gradients come in by slot. Once all of a step are in, or as they come where slots go on by themselves, their
sum is measured where the description asks for it, and the update rule changes the values; pulls that wait for the new
version are answered. All of this works on ranges of slices at once, and none of it has sockets, threads or clocks.

Read `bucket` (the way of a step: what comes, what is refused, what is applied), then its parts: `steps` (which are in),
`sums` (gradients added in order, and steps that all shards commit together, of which `gate` decides), `update` (the
arrays, plain and encoded, and the rule), `sets` (values that were set) and `pulls` (which wait, and what answers them).
What pushes and pulls wait for is counted for tables too (`sums.PendingSteps`, `pulls.WaitingPulls`).
"""
