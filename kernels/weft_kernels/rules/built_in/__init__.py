"""The built-in update rules: one module each, with a constant `RULE`, found by name."""
