"""What the operators over signals are made of."""
