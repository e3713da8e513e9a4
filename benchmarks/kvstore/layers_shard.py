"""Weft's shard of a benchmark, with settings that the daemon has no words for: priorities off, for comparison.

`python layers_shard.py DESCRIPTION ENDPOINT SETTINGS` serves shard 0 until its standard input ends.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import msgspec

from weft_kvstore.description.records import StoreDescription
from weft_kvstore.process import tune_process
from weft_kvstore.serving.shard_server import ShardServer
from weft_kvstore.settings import LinkSettings


def main(path: str, endpoint: str, settings: str) -> None:
    tune_process()
    with ShardServer(endpoint, settings=LinkSettings(**json.loads(settings))) as server:
        server.open(msgspec.json.decode(Path(path).read_bytes(), type=StoreDescription), 0)
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
