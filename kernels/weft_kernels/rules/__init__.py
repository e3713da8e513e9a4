"""Update rules: one module each, found by name. See `weft_kernels.rule`."""
