"""The worker: binds programs to shapes, runs them with an asynchronous engine, trains a job's slot, is a daemon."""
