"""Older forms of ONNX's operators, one module for each operator or family, each with a tuple `FORMS`."""
