"""A built-in rule's record: its state and numbers are those of `weft_graph.rules.built_in`, its body is made here.

Each is a rule that a user could write as a graph, with a body by hand because the body's passes over memory are what
an update costs: it writes in place and needs one array more at most.
"""

from __future__ import annotations

from weft_graph.rules.built_in import BUILT_IN
from weft_kernels.rules.half import with_half
from weft_kernels.rules.record import Apply, Rule


def built_in(name: str, apply: Apply) -> Rule:
    """The rule of that name. `apply` is written for float32 and float64, of correctly rounded operations alone."""
    return Rule(name, BUILT_IN[name].state, BUILT_IN[name].hyper, with_half(apply), anywhere=True)
