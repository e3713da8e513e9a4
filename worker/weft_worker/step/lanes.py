"""The engine's lanes that a worker uses, by name."""

COMPUTE = "compute"
"""Kernels, and all that reads what they make."""

IO = "io"
"""What waits for the store, and for copies from the device."""
