"""The round trip of one key: pushed, then pulled, from 4 KiB to 64 MiB, beside MXNet.

MXNET_PYTHON=../mx/bin/python python benchmarks/kvstore/one_key.py [--quick] [--json FILE]
"""

from __future__ import annotations

from benchmark import main
from store_cases import one_key

if __name__ == "__main__":
    main("The round trip of one key", one_key())
