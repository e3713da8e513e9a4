"""What a graph that only computes scores is given to train by: nodes of a loss and of metrics."""
