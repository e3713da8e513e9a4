"""From a submitted document to a plan, before anything starts.

`check` finds everything that is wrong with a job, by `options` for its data and options of training, by `rule_check`
for its optimizer and by `estimate` for its memory; it makes the `plan`, which all else of the server goes by. `dry_run`
is what a job would be.
"""
