"""What buckets and tables share: steps, committed steps, pulls that wait, work in pieces.

Read `steps` (which steps are in, merged and applied, and those that wait until all slots have agreed on them) and
`waiting` (a pull and its answers; long work, cut so that the socket is served between two pieces).
"""
