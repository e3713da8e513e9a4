"""Sums of products, and running products."""
