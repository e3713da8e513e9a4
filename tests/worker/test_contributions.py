"""What a slot sends and what it declares nothing for: the program's word, held against the store's description."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import msgspec
import pytest

from weft_graph.ir import Node
from weft_graph.program import Program
from weft_kvstore.description.records import InitializerDescription, KeyDescription, Merge, StoreDescription, Update
from weft_worker.contributions import Contributions, contributions_of
from weft_worker.errors import TaskError
from worker_graphs import normalized
from worker_jobs import programs_of

TRAIN = programs_of(normalized()).train
KEYS = ("w1", "b1", "scale", "shift", "mean", "var", "w2", "b2")


def description(slots: Mapping[str, tuple[int, ...]] | None = None) -> StoreDescription:
    """Two slots, which contribute to every key but for those in `slots`."""
    zero = InitializerDescription("ConstantOfShape", {"value": 0.0})
    keys = {**dict.fromkeys(KEYS, (0, 1)), **(slots or {})}
    return StoreDescription(
        job="job",
        term=1,
        seed=0,
        slots=2,
        shards=("",),
        keys=tuple(KeyDescription(key, "float64", (1,), zero, Update.RULE, 0, those) for key, those in keys.items()),
        rule="sgd",
        hyper={},
        slice_bytes=256,
        merge=Merge.SLOT,
    )


def without_send(*keys: str, declared: tuple[str, ...]) -> Program:
    """The train program less the Sends of `keys`, whose barrier declares nothing for `declared`."""
    nodes = [node for node in TRAIN.nodes if not (node.op_type == "Send" and node.attributes["key"] in keys)]
    barrier = replace(nodes.pop(), attributes={"keys": declared})
    return replace(TRAIN, nodes=(*nodes, barrier))


def test_a_program_that_sends_everything_declares_nothing():
    assert contributions_of(TRAIN, description(), 0) == Contributions(keys=KEYS, sent=KEYS, nothing=())


def test_a_declared_key_that_the_store_waits_for_is_declared_at_every_step():
    program = without_send("w1", "mean", declared=("mean", "w1"))
    taken = contributions_of(program, description(), 1)
    assert taken.keys == KEYS
    assert taken.nothing == ("w1", "mean")
    assert taken.sent == ("b1", "scale", "shift", "var", "w2", "b2")


def test_a_declared_key_that_the_store_does_not_wait_for_is_not_declared():
    program = without_send("w1", declared=("w1",))
    taken = contributions_of(program, description({"w1": ()}), 0)
    assert taken == Contributions(keys=KEYS[1:], sent=KEYS[1:], nothing=())


@pytest.mark.parametrize(
    ("program", "slots", "says"),
    [
        (without_send("w1", "b2", declared=("b2",)), {}, r"waits for \['w1'\], which the program neither sends nor"),
        (TRAIN, {"w1": (1,)}, r"the program sends \['w1'\], for which the store does not wait"),
        (without_send(declared=("w1",)), {}, r"sends \['w1'\], and its SendBarrier declares nothing for the same"),
        (without_send(declared=("ghost",)), {}, r"nothing for \['ghost'\], which the store does not know"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_keys(program, slots, says):
    with pytest.raises(TaskError, match=rf"slot 0: .*{says}"):
        contributions_of(program, description(slots), 0)


def test_a_key_that_the_store_lacks_altogether_is_refused():
    fewer = description()
    fewer = msgspec.structs.replace(fewer, keys=fewer.keys[1:])
    with pytest.raises(TaskError, match=r"sends \['w1'\]"):
        contributions_of(TRAIN, fewer, 0)


@pytest.mark.parametrize(
    ("ending", "says"),
    [
        ((), "has 0 nodes SendBarrier, and needs one"),
        ((Node("SendBarrier", "end", (), (), {"keys": "w1"}, "weft"),), "node 'end' has 'w1' for `keys`"),
        ((Node("SendBarrier", "end", (), (), {"keys": ()}, "weft"),) * 2, "has 2 nodes SendBarrier"),
    ],
)
def test_a_program_without_a_barrier_to_go_by_is_refused(ending, says):
    with pytest.raises(TaskError, match=says):
        contributions_of(replace(TRAIN, nodes=(*TRAIN.nodes[:-1], *ending)), description(), 0)
