"""Gradients and values in fewer bytes: codecs of slices, what they leave behind, and which key uses which."""
