"""What acceptance tests share."""

from __future__ import annotations

from contextlib import chdir
from pathlib import Path
from typing import NamedTuple

from click.testing import Result
from typer.testing import CliRunner

import weft
from weft.cli.app import app


class Place(NamedTuple):
    """A running cluster and the folder that its jobs read from."""

    cluster: weft.Cluster
    folder: Path
    digits: Path
    rows: int

    def command(self, *words: str) -> Result:
        """What becomes of `weft WORDS` in that folder, in this process: one of its own imports for a second."""
        with chdir(self.folder):
            return CliRunner(env={"WEFT_URL": self.cluster.url}).invoke(app, words, catch_exceptions=False)

    def printed(self, *words: str) -> str:
        """What `weft WORDS` prints. Fails with what it says where it fails."""
        done = self.command(*words)
        assert done.exit_code == 0, done.output
        return done.stdout
