"""What a process and its threads are to a store: settings of the process, forks, wake-ups, futures, deadlines."""
