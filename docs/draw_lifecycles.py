"""Writes docs/lifecycles.md from the transition tables of `weft.api.lifecycle`.

Run it with `python docs/draw_lifecycles.py`; a test compares the page with the tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

from weft.api.lifecycle import AGENT_TRANSITIONS, ALLOCATION_TRANSITIONS, JOB_TRANSITIONS

PAGE = Path(__file__).with_name("lifecycles.md")
TABLES: Mapping[str, Mapping[tuple[StrEnum, StrEnum], StrEnum]] = {
    "Job": JOB_TRANSITIONS,  # type: ignore[dict-item]  # a Mapping's key is invariant; drawing only reads
    "Allocation (a lease of one agent for one place in a job)": ALLOCATION_TRANSITIONS,  # type: ignore[dict-item]  # same
    "Agent (a worker or shard daemon)": AGENT_TRANSITIONS,  # type: ignore[dict-item]  # same
}


def drawing(table: Mapping[tuple[StrEnum, StrEnum], StrEnum]) -> str:
    """A Mermaid state diagram: one arrow for each row, the table's first state is where it starts."""
    first = next(iter(table))[0]
    leaving = {state for state, _ in table}
    ends = dict.fromkeys(state for state in table.values() if state not in leaving)
    rows = [f"    {state} --> {following}: {event}" for (state, event), following in table.items()]
    lines = ["stateDiagram-v2", f"    [*] --> {first}", *rows, *(f"    {state} --> [*]" for state in ends)]
    return "\n".join(lines)


def page() -> str:
    parts = [
        "# Lifecycles",
        "Drawn from the tables in `sdk/weft/api/lifecycle.py` by `python docs/draw_lifecycles.py`. Server, SDK and this"
        "\npage read the same tables; an event that a table lacks is refused and changes nothing.",
    ]
    for title, table in TABLES.items():
        parts += [f"## {title}", f"```mermaid\n{drawing(table)}\n```"]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
