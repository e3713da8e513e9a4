"""docs/wire.md says what the code does: every message, field and code is on the page, and its example is real."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import weft_kvstore.client.core
import weft_kvstore.shard.core
from same_host_children import wait_until
from store_cluster import NamedClient
from store_messages import REQUESTS
from weft_graph.program import Update
from weft_kvstore.description.records import InitializerDescription, KeyDescription, Merge, StoreDescription
from weft_kvstore.serving.shard_server import ShardServer
from weft_kvstore.settings import LinkSettings
from weft_kvstore.wire.codec import FORMAT_VERSION, encode
from weft_kvstore.wire.messages import FailureCode, RefusalCode, Reply, Request

PAGE = (Path(__file__).parents[3] / "docs" / "wire.md").read_text()
KINDS = sorted({*Request.__args__, *Reply.__args__}, key=lambda kind: kind.__name__)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_message_is_on_the_page_with_its_fields(kind: type) -> None:
    rows = [row for row in PAGE.splitlines() if row.startswith(f"| `{kind.__struct_config__.tag}` |")]
    assert len(rows) == (kind in Request.__args__) + (kind in Reply.__args__)
    for row in rows:
        fields = re.findall(r"`(\w+)(?:\[\])?`", row.split("|")[2].split(";")[0])
        codes = {code.value for code in RefusalCode} | {code.value for code in FailureCode}
        assert [field for field in fields if field not in codes] == list(kind.__struct_fields__)


def test_every_code_is_on_the_page() -> None:
    assert f"`code` ({', '.join(f'`{code.value}`' for code in FailureCode)})" in PAGE
    assert all(f"| `{code.value}` |" in PAGE for code in RefusalCode)


def test_the_page_is_of_this_format_version() -> None:
    assert PAGE.startswith(f"# The store's wire format, version {FORMAT_VERSION}\n")


def test_the_example_is_what_the_codec_writes() -> None:
    lines = PAGE[PAGE.index("    57 45") : PAGE.index("    and a second part")].splitlines()
    shown = "".join("".join(re.match(r"(?:\s*(?:[0-9a-f]{2})(?=\s|$))*", line)[0].split()) for line in lines)
    message, payload = REQUESTS["push"]
    assert bytes.fromhex(shown) == bytes(encode(message, payload)[0])


def heard(
    monkeypatch: pytest.MonkeyPatch, core: Any, decoding: str, who: str, log: list[tuple[str, Any, bytes]]
) -> None:
    """Logs all that a side takes in."""
    decode = getattr(core, decoding)

    def decoded(parts: Sequence[Any]) -> tuple[Any, memoryview, int]:
        message, payload, number = decode(parts)
        log.append((who, message, bytes(payload)))
        return message, payload, number

    monkeypatch.setattr(core, decoding, decoded)


def test_the_exchange_is_what_passes_between_client_and_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[tuple[str, Any, bytes]] = []
    heard(monkeypatch, weft_kvstore.shard.core, "decode_request", "client", log)
    heard(monkeypatch, weft_kvstore.client.core, "decode_reply", "shard", log)
    ones = InitializerDescription("ConstantOfShape", {"value": 1.0})
    key = KeyDescription("w", "float32", (4,), ones, Update.RULE, 0, (0,))
    with ShardServer("tcp://127.0.0.1:0") as server:
        described = StoreDescription("job", 1, 1, 1, (server.endpoint,), (key,), "sgd", {"lr": 0.5}, 8, Merge.SLOT)
        server.open(described, 0)
        with NamedClient(described, 0, settings=LinkSettings(same_host=False)) as store:
            wait_until(lambda: len(log) == 2)
            store.push("w", 0, np.ones(4, np.float32)).result(20)
            assert store.pull("w", 1).result(20).tolist() == [0.5] * 4
            wait_until(lambda: len(log) == 7)
        wait_until(lambda: len(log) == 8)
    rows = re.findall(r"^\| \d \| (\w+) \| `([a-z-]+)`(.*?) \| ([\d. ]*)\|$", PAGE, flags=re.MULTILINE)
    assert [(who, kind) for who, kind, _, _ in rows] == [
        (who, message.__struct_config__.tag) for who, message, _ in log
    ]
    assert sum(len(re.findall("`", fields)) for _, _, fields, _ in rows) > 25
    for (_, _, fields, numbers), (_, message, payload) in zip(rows, log, strict=True):
        for field, value in re.findall(r"`(\w+)` (\[[\w\[\], ]+\]|\d+|\"\w+\")", fields):
            assert json.loads(msgspec.json.encode(getattr(message, field))) == json.loads(value), (message, field)
        assert np.frombuffer(payload, np.float32).tolist() == [float(number) for number in numbers.split()]
