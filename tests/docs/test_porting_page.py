"""The page on porting: every program on it prints what it says, and every call it names is there."""

from __future__ import annotations

import re
from inspect import signature
from pathlib import Path

import pytest

from weft_graph.rules.built_in import BUILT_IN
from weft_kvstore import Key, KVStore, describe

OF_MXNET = """broadcast create init is_capable load_optimizer_states num_workers pull push pushpull rank register
    row_sparse_pull save_optimizer_states set_gradient_compression set_optimizer type _barrier _set_updater
    _send_command_to_servers"""
"""What `mxnet.kv` of MXNet 1.9 has: a store's methods and properties, and what makes one."""

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "porting.md").read_text()


def test_the_programs_print_what_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One after the other: later ones use what earlier ones have imported."""
    monkeypatch.chdir(tmp_path)
    programs = re.findall(r"```(\w*)\n(.*?)```", PAGE, flags=re.DOTALL)
    assert {kind for kind, _ in programs} == {"python"}
    assert len(programs) == 7
    names = {"__name__": "__main__"}
    for _, program in programs:
        exec(program, names)
        assert capsys.readouterr().out.splitlines() == re.findall(r"print\(.*\)  # (.*)", program)


def test_every_call_and_name_is_there() -> None:
    public = {name for name in dir(KVStore) if not name.startswith("_")}
    called = set(re.findall(r"\b(?:store|KVStore)\.(\w+)", PAGE))
    assert called <= public | {"description", "slot", "md"}
    assert called >= {"init", "push", "pull", "pushpull", "push_rows", "pull_rows", "pull_state", "restore", "barrier"}
    assert set(re.findall(r'rule="(\w+)"', PAGE)) <= set(BUILT_IN)
    fields = set(re.findall(r"Key\((?:[^()]|\([^()]*\))*?\b(\w+)=", PAGE))
    assert fields <= {*Key.__dataclass_fields__}
    assert {"compression", "slice_bytes", "mode"} <= set(signature(describe).parameters)


def test_every_call_of_mxnets_store_is_in_the_table() -> None:
    table = PAGE[PAGE.index("\n| MXNet | weft |") :].split("\n\n")[0]
    told = {name for row in table.splitlines()[3:] for name in re.findall(r"\b_?[a-z]\w+", row.split("|")[1])}
    assert set(OF_MXNET.split()) - told == set()


def test_every_link_leads_somewhere() -> None:
    for file, anchor in re.findall(r"\]\(([\w-]*\.md)?(?:#([\w-]+))?\)", PAGE):
        text = (DOCS / file).read_text() if file else PAGE
        headings = [
            re.sub(r"[^\w -]", "", line.lstrip("# ").lower()).replace(" ", "-")
            for line in text.splitlines()
            if line.startswith("#")
        ]
        assert not anchor or anchor in headings, (file, anchor)
