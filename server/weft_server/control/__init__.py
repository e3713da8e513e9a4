"""The control plane as a state machine: facts in, instructions out. Pure; `clock` alone reads a clock, for its callers.

`controller` holds the present: it takes each fact to the job or agent that it is about, and has `scheduler` match
waiting jobs with agents of the `registry`. `job_run` is the life of one job, over `leases` (who holds which of its
places), `snapshots`, `values` and `metrics`. `memory` is what outlives the process, `instructions` what is to be
carried out, `orders` what an agent is told.
"""
