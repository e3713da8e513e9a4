"""Many keys in one step: the 161 arrays of ResNet-50, and 256 keys of 4 KiB in flight, beside MXNet.

docs/benchmarks.md says how to run it, and what the figures mean.
"""

from __future__ import annotations

from benchmark import main
from further_cases import further_many_keys
from store_cases import many_keys

if __name__ == "__main__":
    main("Many keys in one step", many_keys(), further_many_keys())
