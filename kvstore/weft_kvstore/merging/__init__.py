"""What buckets and tables share: steps, committed steps, pulls that wait, work in pieces.

Read `steps` (which steps are in, merged and applied, synchronously or not), `step_gate` (steps that wait until all
slots have agreed on them), `pulls` (a pull and its answers) and `work` (long work, cut so that the socket is served
between two pieces).
"""
