"""The JSON form of programs, which travels from the server to workers. Reading what was written gives it back whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from types import MappingProxyType
from typing import Final, TypeVar

from weft_graph.json_form import (
    Json,
    constant_to_json,
    constants_from_json,
    initializer_from_json,
    initializer_to_json,
    input_from_json,
    input_to_json,
    node_to_json,
    nodes_from_json,
    type_from_json,
    type_to_json,
    version_from_json,
)
from weft_graph.json_place import Place
from weft_graph.limits import PROGRAM_LIMITS
from weft_graph.program import KeyPlan, Program, Programs, Role, Update

FORMAT_VERSION: Final = 2
"""Of what is written. Version 1 knew no tables, and is read too: records keep the programs of jobs that go on."""

_OLDEST_VERSION: Final = 1

E = TypeVar("E", bound=StrEnum)


def programs_to_json(programs: Programs) -> Json:
    """The programs as a JSON document."""
    return {
        "format_version": FORMAT_VERSION,
        "train": program_to_json(programs.train),
        "evaluate": program_to_json(programs.evaluate),
        "keys": [_key_to_json(key) for key in programs.keys],
    }


def programs_from_json(document: object) -> Programs:
    """Reads a parsed JSON document. Raises GraphFormatError, whose pointer says where, and nothing else."""
    place = Place(document, limits=PROGRAM_LIMITS)
    fields = place.fields(("format_version", "train", "evaluate", "keys"))
    version = fields["format_version"]
    if version.value != _OLDEST_VERSION or type(version.value) is not int:
        version_from_json(version, (FORMAT_VERSION,), "format version")
    read_key = _key_of_version_1 if version.value == _OLDEST_VERSION else _key_from_json
    return Programs(
        train=_program_from_json(fields["train"]),
        evaluate=_program_from_json(fields["evaluate"]),
        keys=tuple(map(read_key, fields["keys"].items(PROGRAM_LIMITS.records))),
    )


def program_to_json(program: Program) -> Json:
    """One program as a JSON document."""
    return {
        "role": program.role.value,
        "inputs": [input_to_json(input_) for input_ in program.inputs],
        "constants": [constant_to_json(constant) for constant in program.constants],
        "nodes": [node_to_json(node, f"/nodes/{index}") for index, node in enumerate(program.nodes)],
        "outputs": dict(program.outputs),
        "types": {name: type_to_json(type_) for name, type_ in program.types.items()},
    }


def _program_from_json(place: Place) -> Program:
    fields = place.fields(("role", "inputs", "constants", "nodes", "outputs", "types"))
    outputs = fields["outputs"].members(PROGRAM_LIMITS.records)
    types = fields["types"].members(PROGRAM_LIMITS.nodes)
    return Program(
        role=_member(fields["role"], Role),
        inputs=tuple(map(input_from_json, fields["inputs"].items(PROGRAM_LIMITS.records))),
        constants=constants_from_json(fields["constants"]),
        nodes=nodes_from_json(fields["nodes"]),
        outputs=MappingProxyType({name: value.name() for name, value in outputs.items()}),
        types=MappingProxyType({name: type_from_json(t.fields(("dtype", "shape"))) for name, t in types.items()}),
    )


def _key_to_json(key: KeyPlan) -> Json:
    """`lazy_update` is written only where it is false."""
    document: Json = {
        "key": key.key,
        **type_to_json(key.type),
        "initializer": initializer_to_json(key.initializer),
        "update": key.update.value,
        "priority": key.priority,
        "rows": key.rows,
        "dense_because": key.dense_because,
    }
    return document if key.lazy_update else {**document, "lazy_update": False}


_KEY_FIELDS: Final = ("key", "dtype", "shape", "initializer", "update", "priority")


def _key_of_version_1(place: Place) -> KeyPlan:
    return _dense_key(place.fields(_KEY_FIELDS))


def _key_from_json(place: Place) -> KeyPlan:
    fields = place.fields((*_KEY_FIELDS, "rows", "dense_because"), ("lazy_update",))
    return replace(
        _dense_key(fields),
        rows=fields["rows"].boolean(),
        dense_because=fields["dense_because"].text(),
        lazy_update=fields["lazy_update"].boolean() if "lazy_update" in fields else True,
    )


def _dense_key(fields: Mapping[str, Place]) -> KeyPlan:
    return KeyPlan(
        key=fields["key"].name(),
        type=type_from_json(fields),
        initializer=initializer_from_json(fields["initializer"]),
        update=_member(fields["update"], Update),
        priority=fields["priority"].integer(0, PROGRAM_LIMITS.records),
    )


def _member(place: Place, kind: type[E]) -> E:
    for member in kind:
        if place.value == member.value:
            return member
    raise place.expected(f"one of {', '.join(kind)}")
