"""The shard as a process: its socket and threads, the daemon, metrics."""
