"""Update rules: one module each, found by name. See `weft_kernels.rules.record`."""
