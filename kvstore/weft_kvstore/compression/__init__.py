"""Gradients and values in fewer bytes.

A description names an encoding for what is pushed and for what is pulled; a sender keeps what an encoding leaves out,
the residual, and adds it to the next gradient. Everything here is a pure function of arrays, and both sides agree on
it.

Read `codecs` (half precision, two bits, top-k) and `slices` (codecs over the slices of a key, and residuals).
"""
