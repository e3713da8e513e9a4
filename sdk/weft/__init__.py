"""weft: train computation graphs on a cluster. Send a graph, not code."""
