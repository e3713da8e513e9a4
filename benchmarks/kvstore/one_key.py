"""The round trip of one key: pushed, then pulled, from 4 KiB to 64 MiB, beside MXNet.

docs/benchmarks.md says how to run it, and what the figures mean.
"""

from __future__ import annotations

from benchmark import main
from further_cases import further_one_key
from store_cases import one_key

if __name__ == "__main__":
    main("The round trip of one key", one_key(), further_one_key())
