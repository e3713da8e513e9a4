"""Reverse-mode differentiation of a graph: the backward nodes of a loss."""
