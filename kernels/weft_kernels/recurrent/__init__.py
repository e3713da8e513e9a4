"""Recurrent layers: cells over sequences, forwards and backwards in time."""
