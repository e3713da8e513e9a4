"""Small PyTorch models of many families, each as plain data: how it is made, what it is fed, whether weft refuses it.

`case` says what a case is. The chapters hold the cases: `pictures`, `sequences`, `tables` (embeddings, recommenders),
`relations` (graphs and sets), `regularized` (dropout, normalization, frozen parts), `objectives` (losses and ways to
train) and `configured` (models of the `transformers` package). `zoo` joins them, and `oracle` computes outputs and
gradients of a case by PyTorch's autograd and of a graph by weft's kernels. Needs torch and transformers.
"""
