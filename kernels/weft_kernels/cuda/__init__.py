"""CUDA C where the array module alone is slower, and what runs it."""
