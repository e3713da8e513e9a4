"""ONNX files that nobody vouches for: read in forks of a process of their own."""
