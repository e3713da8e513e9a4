"""Windows over arrays, and what is made of them: convolutions, their transposes, sums over neighbouring channels."""
