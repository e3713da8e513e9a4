"""docs/wire.md says what the code does: every message, field and code is on the page, and its example is real."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from store_messages import REQUESTS
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
