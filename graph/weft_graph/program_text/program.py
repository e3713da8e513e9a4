"""A program as text: what it does, and its nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from weft_graph.dimensions import Dim, bound
from weft_graph.memory import program_memory
from weft_graph.program import KeyPlan, Program, Programs, Role, Update, parts_of
from weft_graph.program_text.listing import (
    Setting,
    counted,
    folded,
    is_literal,
    is_store,
    listed,
    listing,
    name_text,
    numbered,
    paragraph,
    plain,
    size_text,
    table,
    type_text,
    value_names,
)
from weft_graph.weft_domain import COPY, FETCH, FETCH_ROWS, SEND, SEND_ROWS, TRANSFER

# ----------------------------------------------------------------------------------------------------------------------
# What programs do, in sentences: where parameters lie, what travels when, what a step holds, what is dense and why.


@dataclass(frozen=True, slots=True)
class _Travel:
    """Between which nodes that compute, by number, a key is asked for and sent; None where it is not.

    `fetched` 3 is before node 3, `sent` 3 behind it.
    """

    fetched: int | None = None
    sent: int | None = None


def story(programs: Programs, setting: Setting | None) -> Iterator[str]:
    """Paragraphs and the table of the parameters, line by line."""
    travels = _travels(programs.train)
    yield from _keys_part(programs, setting, travels)
    yield from _tables_part(programs, setting)
    yield ""
    yield from _transfer_part(programs, travels)
    yield from _memory_part(programs, setting)


def _travels(program: Program) -> dict[str, _Travel]:
    found: dict[str, _Travel] = {}
    done = 0
    for node in program.nodes:
        if not is_store(node):
            done += 1
            continue
        key = str(node.attributes.get("key", ""))
        if node.op_type in {FETCH, FETCH_ROWS}:
            found[key] = _Travel(done + 1)
        elif node.op_type in {SEND, SEND_ROWS}:
            found[key] = _Travel(found[key].fetched if key in found else None, done)
    return found


def _keys_part(programs: Programs, setting: Setting | None, travels: Mapping[str, _Travel]) -> Iterator[str]:
    keys = sorted(programs.keys, key=lambda key: key.priority)
    total = size_text(sum(key.type.nbytes for key in keys))
    on = ""
    if setting is not None:
        shards = f"{counted(setting.shards, 'shard')} and " if setting.shards else ""
        on = f", on {shards}{counted(setting.workers, 'worker')}"
    yield from paragraph(f"{counted(len(keys), 'parameter')} of {total} in all{on}, the most urgent first:")
    yield ""
    rows = [
        (
            str(key.priority),
            name_text(key.key),
            type_text(key.type),
            size_text(key.type.nbytes),
            _lives(key, setting),
            _updated(key, programs, setting),
            "" if (travel := travels.get(key.key, _Travel())).fetched is None else str(travel.fetched),
            "" if travel.sent is None else str(travel.sent),
        )
        for key in keys
    ]
    head = ("priority", "key", "type", "size", "lies in", "updated by", "before", "after")
    yield from table(head, rows)
    yield ""
    yield from paragraph(
        "A parameter is fetched right before its first reader, the node of the training step whose number is under",
        "before, and its gradient is sent as soon as the node under after has made it.",
        _cut_sentence(programs, setting),
    )


def _lives(key: KeyPlan, setting: Setting | None) -> str:
    if key.rows:
        return "rows"
    return "whole" if setting is None or key.key not in setting.slices else counted(setting.slices[key.key], "slice")


def _updated(key: KeyPlan, programs: Programs, setting: Setting | None) -> str:
    if key.update is Update.MEAN:
        sent = any(node.op_type == SEND and node.attributes["key"] == key.key for node in programs.train.nodes)
        return "mean" if sent else "nobody"
    return "workers" if setting is not None and setting.updated_by_workers and not key.rows else "optimizer"


def _cut_sentence(programs: Programs, setting: Setting | None) -> str:
    if setting is None or all(key.rows for key in programs.keys):
        return ""
    if not setting.shards:
        told = "The worker keeps the values in its own process, and updates them once a step has computed all."
        return f"{told} It does so {setting.commits}." if setting.commits else told
    where = "the shard" if setting.shards == 1 else f"the {setting.shards} shards, evenly by bytes"
    applied = f"once the gradients of all {setting.workers} workers are in" if setting.waits else "as it comes"
    if setting.workers == 1:
        applied = "as it comes"
    who = "workers keep the values" if setting.updated_by_workers else f"a slice is updated {applied}"
    told = f"Slices of at most {size_text(setting.slice_bytes)} lie on {where}; {who}."
    if not setting.commits:
        return told
    cost = "one more round trip a step, and the merged gradients in the shards' memory until then"
    return f"{told} All slices wait for the last one, {setting.commits}: {cost}."


def _tables_part(programs: Programs, setting: Setting | None) -> Iterator[str]:
    rows = {node.attributes["key"]: node.outputs[0] for node in programs.evaluate.nodes if node.op_type == FETCH_ROWS}
    for key in programs.keys:
        if key.key in rows:
            yield ""
            yield from paragraph(_table_sentence(key, rows[key.key], programs, setting))
        elif key.dense_because:
            yield ""
            yield from paragraph(
                f"{name_text(key.key)} is read by rows, and is dense all the same: {plain(key.dense_because)}."
            )


def _table_sentence(key: KeyPlan, rows: str, programs: Programs, setting: Setting | None) -> str:
    # An evaluation program has no backward nodes, so what reads the rows there is the user's.
    readers = [name_text(node.name) for node in programs.evaluate.nodes if node.inputs and node.inputs[0] == rows]
    pushed = any(node.op_type == SEND_ROWS and node.attributes["key"] == key.key for node in programs.train.nodes)
    count = _filled(programs.train.types[rows].shape[0], setting)
    table_rows = key.type.static_shape[0]
    width, taken = key.type.nbytes // (table_rows or 1), ""
    if isinstance(count, int) and count < table_rows:
        taken = f", {size_text(count * width)} in the place of {size_text(key.type.nbytes)}"
    elif isinstance(count, int):
        count = table_rows
    early = _is_early(programs.train, key.key)
    return (
        f"{name_text(key.key)} is a table: it is read by rows alone, at {listed(readers)}. "
        f"A step fetches at most {count} of its {table_rows:,} rows{taken}, "
        + ("before anything else runs, " if early else "once their ids are computed, ")
        + ("and sends gradients of these alone." if pushed else "and sends nothing: it is not trained.")
        + (" The rule runs on its other rows too, with gradients of zeros." if pushed and not key.lazy_update else "")
    )


def _is_early(program: Program, key: str) -> bool:
    """Whether the rows are asked for before anything that reads a parameter."""
    for node in program.nodes:
        if node.op_type == FETCH_ROWS and node.attributes["key"] == key:
            return True
        if node.op_type == FETCH:
            return False
    return False


def _filled(dim: Dim, setting: Setting | None) -> Dim:
    return dim if setting is None or not isinstance(dim, str) else bound(dim, setting.dims)


def _transfer_part(programs: Programs, travels: Mapping[str, _Travel]) -> Iterator[str]:
    program = programs.train
    numbers = numbered(program)
    sizes = {key.key: key.type.nbytes for key in programs.keys if not key.rows and key.update is not Update.MEAN}
    forward, backward = (sum(node.name in numbers for node in part) for part in parts_of(program.nodes))
    sent = {key: travel.sent for key, travel in travels.items() if travel.sent is not None and key in sizes}
    yield from paragraph(
        f"A training step runs {counted(len(numbers), 'node')}, {forward} forward and {backward} backward.",
        _overlap(sent, sizes, len(numbers)),
        _copies(program),
    )


def _copies(program: Program) -> str:
    moved = [node for node in program.nodes if node.op_type in {COPY, TRANSFER}]
    if not moved:
        return ""
    ways = dict.fromkeys(f"{node.attributes['source']} to {node.attributes['target']}" for node in moved)
    return f"{counted(len(moved), 'value')} cross between places: {listed(ways)}."


def _overlap(sent: Mapping[str, int], sizes: Mapping[str, int], nodes: int) -> str:
    """How much of what is sent has something to hide behind."""
    if not sent:
        return ""
    order = sorted(sent, key=lambda key: sent[key])
    left = nodes - sent[order[0]]
    total = sum(sizes[key] for key in sent)
    late = [key for key in order if sent[key] == nodes]
    early = total - sum(sizes[key] for key in late)
    alone = f"{name_text(late[0])} is sent last, with nothing to hide behind." if len(late) == 1 else ""
    if not left:
        return alone
    text = f"The first gradient, of {name_text(order[0])}, is sent while {counted(left, 'node')} are still to run"
    if early < total:
        text += f"; {size_text(early)} of {size_text(total)} are on their way before the last one is done"
    return f"{text}. {alone}".rstrip()


def _memory_part(programs: Programs, setting: Setting | None) -> Iterator[str]:
    if setting is None:
        return
    yield ""
    sizes = ", ".join(f"{name} {size}" for name, size in setting.dims.items())
    memory = program_memory(programs.train, setting.dims)
    made = size_text(memory.arena)
    if memory.intermediates:
        made += (
            f" for what nodes make ({100 * memory.arena // memory.intermediates} % of {size_text(memory.intermediates)}"
        )
        made += ", which values without shared memory would take)"
    yield from paragraph(
        f"With {sizes} a worker's training step holds at most {size_text(memory.peak)}:"
        if sizes
        else f"A worker's training step holds at most {size_text(memory.peak)}:",
        f"{size_text(memory.given)} of inputs, constants and what is fetched, {made}, and {size_text(memory.kept)} for",
        "what is handed to the store and the job, gradients above all.",
        f"{counted(memory.unknown, 'value')} whose size only a step decides is not in it." if memory.unknown else "",
        f"An evaluation step as large holds {size_text(program_memory(programs.evaluate, setting.dims).peak)}.",
    )


def programs_text(programs: Programs, setting: Setting | None = None) -> str:
    """Where parameters live, what travels when and what a step holds, then both programs. No line is longer than 100.

    Without `setting`, what depends on the job's processes and sizes is left out.
    """
    parts = (story(programs, setting), program_lines(programs.train), program_lines(programs.evaluate))
    return "\n\n".join("\n".join(part) for part in parts)


def program_lines(program: Program) -> Iterator[str]:
    """The program's nodes below what it is given and asked for."""
    computing = [node for node in program.nodes if not is_store(node)]
    forward, backward = map(len, parts_of(computing))
    count = counted(len(computing), "node")
    parts = f", {forward} forward and {backward} backward" if backward else ""
    yield f"{'training' if program.role is Role.TRAIN else 'evaluation'} step: {count}{parts}"
    names = value_names(program, {})
    inputs = ", ".join(f"{names[given.name]} {type_text(given.type)}" for given in program.inputs)
    large = [constant for constant in program.constants if not is_literal(constant)]
    constants = ", ".join(f"{names[each.name]} {type_text(program.types[each.name])}" for each in large)
    outputs = ", ".join(name if name == value else f"{name} = {value}" for name, value in program.outputs.items())
    for what, text in (("given", inputs), ("constants", constants), ("asked", outputs)):
        if text:
            yield from folded(text, f"  {what:<9} ", " " * 12)
    yield ""
    yield from listing(program)
