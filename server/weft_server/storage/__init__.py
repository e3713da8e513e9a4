"""What outlives the server's process: the records in one SQLite database, the files of jobs, their snapshots.

Everything blocks, and is called on threads; `journal` is how the state machine's instructions come to the records.
"""
