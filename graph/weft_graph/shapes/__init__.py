"""Arithmetic of shapes that several operators share; pure functions over dimensions that are numbers or names."""
