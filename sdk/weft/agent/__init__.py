"""What the daemons of workers and shards have in common: an agent's side of the protocol that `weft.api.agent` models.

`startup` is how every daemon starts and ends, the server too; `children` forks processes with limits, for agents and
the server. `daemon` is an agent: it registers with the server through `membership`, asks `state` what its orders mean,
and runs a child for each allocation. `reporter` brings facts about an allocation to the server, `transfer` its
parameters; both try again by `retry`.
"""
