"""Rows of a table of a million: 4,096 random ones pushed and then pulled, beside MXNet.

docs/benchmarks.md says how to run it, and what the figures mean.
"""

from __future__ import annotations

from benchmark import main
from further_cases import further_sparse
from store_cases import sparse

if __name__ == "__main__":
    main("Rows of a table", sparse(), further_sparse())
