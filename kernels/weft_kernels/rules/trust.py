"""How long a step is beside its weight: the trust ratio of LARS and LAMB."""

from __future__ import annotations


def ratio(weight: float, update: float, trust: float) -> float:
    """trust * weight / update of two norms; 1 where either is 0 or no number, and where `trust` is 0: no ratio."""
    return trust * weight / update if trust and weight > 0 and update > 0 else 1.0
