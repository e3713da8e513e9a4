"""Rows of tables by their ids: where they lie, and when they come and go."""
