"""A program, and what was done to it, as text that a person reads."""
