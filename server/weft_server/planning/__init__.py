"""From a submitted document to a plan, before anything starts. Pure but for `reading`, which opens the data's source.

`turns` says who is checked next. `check` finds everything that is wrong with a job and makes its `plan`, which all else
of the server goes by; `dry_run` is what a job would take.
"""
