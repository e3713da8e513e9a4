"""The dependency engine: runs what is pushed to it once what it reads and writes is free. It knows no graphs.

`errors` what is raised; `work` the records; `dependencies` the bookkeeping (pure); `engine` what every engine offers;
`threaded` the engine with lanes of threads; `serial` the one that has none, for steps that nothing travels for, and for
debugging.
"""
