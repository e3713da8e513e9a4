"""What a store needs of its process: futures, deadlines, signals, forks, wake-ups.

Read `futures` (a future that its waiter can drive, and deadlines), `joined_future` (futures made of others) and
`process` (what belongs to the process and its threads).
"""
