"""Update rules: the built-in ones, users' rules as graphs, and the hyper-parameters that they read."""
