"""CPU kernels of onnxruntime: a run of nodes becomes one session.

`lowering` says which nodes onnxruntime computes, and writes weft's gradient operators in ONNX's words. `session` makes
the session of a run of nodes, a kernel like any other. Read them in this order. onnxruntime is loaded when the first
session is made.
"""
