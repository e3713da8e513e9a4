"""What normalizations subtract and divide by, and its gradients."""
