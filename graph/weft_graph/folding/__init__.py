"""What is known of values without running a kernel: an evaluator that gives up where it does not know."""
