"""What the converter does to a graph: one pass a file, each a pure function of a draft."""
