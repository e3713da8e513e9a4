"""What lots, whole keys and tables share: steps, the gate of committed steps, pulls that wait, pieces of work."""
