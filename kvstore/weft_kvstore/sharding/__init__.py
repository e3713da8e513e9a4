"""How keys are cut into slices, lots and rows, and which shard has what: pure functions of the description."""
