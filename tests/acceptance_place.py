"""What acceptance tests share."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import weft


class Place(NamedTuple):
    """A running cluster and the folder that its jobs read from."""

    cluster: weft.Cluster
    folder: Path
    digits: Path
    rows: int
