"""What a graph that only computes scores is given to train by: nodes of a loss and of metrics.

`with_loss` makes a graph trainable. `comparison` finds the output and the target that a loss compares, `activations`
whether that output is made by a Softmax or Sigmoid, and `measures` has the formulas of losses and metrics, by name.
`classes` says where scores have their classes; `nodes` types what is added.
"""
