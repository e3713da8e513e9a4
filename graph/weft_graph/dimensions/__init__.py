"""Sizes of axes: numbers, names, and what sums and products make of them."""
