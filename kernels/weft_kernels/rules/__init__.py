"""Update rules: what one is, how it is found or compiled, and how it is applied to rows of a table."""
