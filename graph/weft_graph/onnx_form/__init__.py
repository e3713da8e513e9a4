"""ONNX files: their reader, which makes weft's graphs of them, and their writer. Needs the `onnx` package."""
