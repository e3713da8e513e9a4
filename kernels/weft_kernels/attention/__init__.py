"""Attention over blocks of queries, so that scores of all queries and keys never exist at once."""
