"""Rows and elements by their indices: checked, taken, written and summed."""
