"""Rows of a table of a million: 4,096 random ones pushed and then pulled, beside MXNet.

MXNET_PYTHON=../mx/bin/python python benchmarks/kvstore/sparse.py [--quick] [--json FILE]
"""

from __future__ import annotations

from benchmark import main
from store_cases import sparse

if __name__ == "__main__":
    main("Rows of a table", sparse())
