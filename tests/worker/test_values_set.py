"""Values that are set: given first values before step 0, ordered ones between two steps, dense keys and tables."""

from __future__ import annotations

import io
import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load, save

from server_running import eventually
from store_cluster import NamedStore
from weft.agent.transfer import DownloadError
from weft.api.agent import SetDone
from weft.api.lifecycle import AllocationEvent
from weft_graph.types import DType
from weft_kernels.kernel import Array
from weft_kvstore.description.records import descriptions
from weft_kvstore.snapshot_files import Tensor, TensorFile, TensorFileError, header_of
from weft_worker.ordered_sets import OrderedSets
from weft_worker.value_setter import ValueSetter
from worker_graphs import CLASSES, VOCABULARY, WIDTH, bags
from worker_jobs import BAG_COLUMNS, WAIT_S, Job, Records, programs_of, run_of, save_bags

ROWS = 64
DONE, FAILED = AllocationEvent.DONE, AllocationEvent.FAILED


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return save_bags(tmp_path / "bags.npz", ROWS)


def job_of(data: Path, steps: int, **options: Any) -> Job:
    """Batches of 32: two steps a pass."""
    return Job(programs_of(bags(DType.FLOAT32)), data, steps, (0, ROWS), columns=BAG_COLUMNS, batch=32, **options)


def values(seed: int) -> dict[str, Array]:
    draw = np.random.default_rng(seed)
    shapes = {"table": (VOCABULARY, WIDTH), "w": (WIDTH, CLASSES), "b": (CLASSES,)}
    return {key: draw.normal(size=shape).astype(np.float32) for key, shape in shapes.items()}


@contextmanager
def store_for(job: Job) -> Iterator[NamedStore]:
    description = descriptions.from_builtins(job.store_spec().model_dump(mode="json"))
    with NamedStore(description) as store:
        yield store


def trained(job: Job, documents: Mapping[str, bytes] | None = None) -> list[Records]:
    """All slots' records; the server has `documents` for the keeper."""
    with store_for(job) as store:
        everything = []
        for slot in range(job.slots):
            records = Records(documents=dict(documents or {}) if slot == job.keeper else {})
            run = run_of(job, slot, records, lambda task, slot=slot: store.at_slot(slot))
            everything.append((run, records))
        for run, _ in everything:
            run.start()
        for run, records in everything:
            assert records.over.wait(WAIT_S)
            assert run.join(WAIT_S)
    return [records for _, records in everything]


def final(records: Records) -> dict[str, Array]:
    return load(records.uploads[-1][0])


@pytest.mark.parametrize("names", [("table", "w", "b"), ("table",), ("w",)])
@pytest.mark.parametrize("slots", [1, 3])
def test_given_values_are_the_first_ones_for_every_slot(data, names, slots):
    """A rate of zero leaves them as they were set; what is not given begins as the graph says."""
    given = values(1)
    job = job_of(data, 2, given=names, slots=slots, lr=0.0, keeper=slots - 1)
    everything = trained(job, {"given": save(given)})
    assert [records.last for records in everything] == [(DONE, None)] * slots
    plain = final(trained(job_of(data, 2, lr=0.0))[0])
    for key, value in final(everything[-1]).items():
        np.testing.assert_array_equal(value, given[key] if key in names else plain[key], err_msg=key)


def test_given_values_that_the_graph_would_have_made_change_no_bit(data):
    with store_for(job_of(data, 4)) as store:
        first = {key: store.pull(key, 0).result(WAIT_S) for key in ("w", "b")}
        first["table"] = store.pull("table", 0, np.arange(VOCABULARY)).result(WAIT_S)
    given = trained(job_of(data, 4, given=("table", "w", "b"), slots=3), {"given": save(first)})
    plain = trained(job_of(data, 4, slots=3))
    for key, value in final(plain[0]).items():
        np.testing.assert_array_equal(final(given[0])[key], value, err_msg=key)


def test_workers_that_update_themselves_begin_with_given_values_too(data):
    given = values(2)
    options: dict[str, Any] = {"given": ("table", "w", "b"), "slots": 3}
    local = trained(job_of(data, 4, local=True, **options), {"given": save(given)})
    shards = trained(job_of(data, 4, **options), {"given": save(given)})
    for key, value in final(shards[0]).items():
        np.testing.assert_array_equal(final(local[0])[key], value, err_msg=key)


@pytest.mark.parametrize(
    ("document", "says"),
    [
        (save({"table": values(1)["table"]}), "parameter 'w' is not in the document"),
        (
            save({**values(1), "w": np.zeros((3, 2), np.float32)}),
            r"'w' is float32\[4, 3\], the document has float32\[3",
        ),
        (save({**values(1), "w": np.zeros((4, 3))}), r"'w' is float32\[4, 3\], the document has float64\[4, 3\]"),
        (b"no such thing", "no safetensors document"),
        (b"", "no safetensors document: 0 bytes"),
        (save(values(1))[:-9], "they are at"),
    ],
    ids=["missing", "shape", "dtype", "none", "empty", "cut"],
)
def test_a_given_document_that_does_not_fit_fails_the_keeper_by_name(data, document, says):
    (records,) = trained(job_of(data, 2, given=("table", "w")), {"given": document})
    event, reason = records.last
    assert event is FAILED
    assert re.search(says, reason), reason


def test_a_given_document_that_does_not_come_fails_the_keeper(data):
    (records,) = trained(job_of(data, 2, given=("w",)))
    assert records.last == (FAILED, "DownloadError: given: there is none")


class NotedStore:
    """Another store, whose pushes and sets are noted as (call, key, step or version)."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.noted: list[tuple[str, str, int]] = []

    def __getattr__(self, call: str) -> Any:
        intact = getattr(self.store, call)
        if not call.startswith(("push", "set")):
            return intact

        def noting(key: str, step: int, *arrays: Array) -> Any:
            self.noted.append((call, key, step))
            return intact(key, step, *arrays)

        return noting


def ordered(data: Path, document: bytes, **options: Any) -> tuple[Records, NotedStore]:
    """What a run told, and its store: it is ordered to set a document in its midst, then to bring what is there."""
    job = job_of(data, 10_000_000, **options)
    records = Records(documents={"sets/1": document})
    with store_for(job) as store:
        noted = NotedStore(store)
        run = run_of(job, 0, records, lambda task: noted)

        def on_step(step: int) -> None:
            if step == 3:
                run.request_set(1)
            elif records.uploads:
                run.stop()
            elif records.sets and step > records.sets[0].step + 1:
                run.request_upload()

        records.on_step = on_step
        run.start()
        assert records.over.wait(WAIT_S)
    return records, noted


def test_ordered_values_are_set_before_the_step_whose_update_they_replace(data):
    wanted = values(3)
    records, store = ordered(data, save(wanted), lr=0.0)
    (done,) = records.sets
    assert done.error is None
    assert {(key, version) for call, key, version in store.noted if call == "set"} == {
        (key, done.step) for key in wanted
    }
    last_set = max(place for place, noted in enumerate(store.noted) if noted[0] == "set")
    first_push = min(
        place for place, noted in enumerate(store.noted) if noted[0] == "push" and noted[2] == done.step - 1
    )
    assert last_set < first_push
    for key, value in final(records).items():
        np.testing.assert_array_equal(value, wanted[key], err_msg=key)


@pytest.mark.parametrize("key", ["w", "table"])
def test_a_key_is_set_again_once_its_earlier_value_holds(data, key):
    """A shard lets few values wait for steps that are not applied; whoever sets often waits, and is not refused."""
    job = job_of(data, 100)
    with store_for(job) as store:
        keys = {each.key: each for each in descriptions.from_builtins(job.store_spec().model_dump(mode="json")).keys}
        setter = ValueSetter(store, keys, (), WAIT_S)
        document = save({key: values(4)[key]})
        setter.set_all(io.BytesIO(document), 1)
        setter.set_all(io.BytesIO(document), 1)  # of one step: the later one is the one
        again = threading.Thread(target=setter.set_all, args=(io.BytesIO(document), 2))
        again.start()
        again.join(0.1)
        assert again.is_alive(), "version 1 is not there: no slot has sent step 0"
        for each in keys.values():
            if each.rows:
                store.push(each.key, 0, np.zeros((0, *each.shape[1:]), each.dtype), np.zeros(0, np.int64))
            else:
                store.push(each.key, 0, np.zeros(each.shape, each.dtype))
        again.join(WAIT_S)
        assert not again.is_alive()


def test_ordered_values_are_the_ones_that_training_goes_on_from(data):
    """A rate above zero moves them from there on."""
    wanted = values(3)
    records, _ = ordered(data, save(wanted))
    found = final(records)
    assert all(np.abs(found[key] - wanted[key]).max() > 0 for key in wanted)


def test_a_document_may_hold_some_parameters_and_the_others_train_on(data):
    records, store = ordered(data, save({"b": values(3)["b"]}))
    assert records.sets[0].error is None
    assert {key for call, key, _ in store.noted if call == "set"} == {"b"}


@pytest.mark.parametrize(
    ("document", "options", "says"),
    [
        (save({"ghost": np.zeros(1, np.float32)}), {}, "tensor 'ghost' is no parameter of the job"),
        (save({"w": np.zeros((1, 1), np.float32)}), {}, "'w' is float32[4, 3], the document has float32[1, 1]"),
        (save({}), {}, "the document holds no tensor"),
        (b"\xff" * 100, {}, "no safetensors document"),
        (save({"w": values(3)["w"]}), {"local": True}, "'w' is updated by every worker itself, and cannot be set"),
    ],
    ids=["unknown", "shape", "empty", "none", "local"],
)
def test_what_cannot_be_set_is_told_and_training_goes_on(data, document, options, says):
    records, store = ordered(data, document, **options)
    (done,) = records.sets
    assert says in done.error
    assert [noted for noted in store.noted if noted[0] == "set"] == []
    assert records.steps[-1] > 3
    assert all(event is not FAILED for event, _ in records.events)


def test_where_workers_update_a_table_can_still_be_set(data):
    wanted = values(3)["table"]
    records, _ = ordered(data, save({"table": wanted}), local=True, lr=0.0)
    assert records.sets[0].error is None
    np.testing.assert_array_equal(final(records)["table"], wanted)


def test_a_document_that_does_not_come_is_told(data):
    records = Records()
    job = job_of(data, 2000)
    with store_for(job) as store:
        run = run_of(job, 0, records, lambda task: store)
        records.on_step = lambda step: run.request_set(7) if step == 3 else (run.stop() if records.sets else None)
        run.start()
        assert records.over.wait(WAIT_S)
    (done,) = records.sets
    assert (done.number, done.error) == (7, "DownloadError: sets/7: there is none")


def test_an_order_that_comes_too_late_is_told_so(data):
    """The document comes only when the run is at its end."""
    records = Records(documents={"sets/1": save(values(3))})
    job = job_of(data, 4)
    intact, ended = records.download, threading.Event()

    def late(what: str, into: Any, stop: threading.Event) -> None:
        assert ended.wait(WAIT_S)
        intact(what, into, stop)

    records.download = late  # type: ignore[method-assign]
    records.on_upload = ended.set
    with store_for(job) as store:
        run = run_of(job, 0, records, lambda task: store)
        records.on_step = lambda step: run.request_set(1) if step == 1 else None
        run.start()
        assert records.over.wait(WAIT_S)
    assert records.last == (DONE, None)
    assert records.sets == [SetDone(number=1, step=4, error="the job has done its last step")]


def test_documents_come_in_order_and_closing_ends_one_that_is_under_way():
    begun = threading.Event()

    def download(what: str, into: Any, stop: threading.Event) -> None:
        if what == "sets/3":
            begun.set()
            assert stop.wait(WAIT_S)
            raise DownloadError("stopped")
        into.write(what.encode())

    before = set(threading.enumerate())
    sets = OrderedSets(download)
    for number in (1, 2, 3, 4):
        sets.request(number)
    assert begun.wait(WAIT_S)
    first, second = sets.take()
    assert [each.number for each in (first, second)] == [1, 2]
    for each in (first, second):
        assert each.file is not None
        each.file.close()
    assert sets.close() == [3, 4]
    sets.request(5)
    assert sets.close() == []
    eventually(lambda: set(threading.enumerate()) <= before, "the thread has ended")


def tensors_of(document: bytes) -> TensorFile:
    return TensorFile(io.BytesIO(document))


def test_a_document_is_read_whole_and_by_rows_as_the_library_wrote_it():
    wanted = {**values(4), "scalar": np.asarray(3.0), "none": np.zeros((0, 3), np.int64)}
    read = tensors_of(save(wanted))
    for name, value in wanted.items():
        np.testing.assert_array_equal(read.read(name), value)
    np.testing.assert_array_equal(read.read("table", 7, 19), wanted["table"][7:19])


def test_the_library_reads_what_is_written_here():
    value = values(4)["table"]
    head = header_of([Tensor("table", "float32", value.shape)], {"job": "job-1"})
    np.testing.assert_array_equal(load(head + value.tobytes())["table"], value)


def header(entry: Any) -> bytes:
    text = json.dumps({"t": entry}).encode()
    return len(text).to_bytes(8, "little") + text + bytes(64)


@pytest.mark.parametrize(
    "document",
    [
        header({"dtype": "F32", "shape": [4], "data_offsets": [0, 15]}),
        header({"dtype": "F32", "shape": [4], "data_offsets": [60, 76]}),
        header({"dtype": "F32", "shape": [-1, -4], "data_offsets": [0, 16]}),
        header({"dtype": "F32", "shape": [1 << 62, 1 << 62], "data_offsets": [0, 0]}),
        header({"dtype": "F32", "shape": [2.0, 2], "data_offsets": [0, 16]}),
        header({"dtype": "F32", "shape": [True, 4], "data_offsets": [0, 16]}),
        header({"dtype": "F8", "shape": [4], "data_offsets": [0, 4]}),
        header({"dtype": "F32", "shape": 4, "data_offsets": [0, 16]}),
        header({"dtype": "F32", "shape": [4], "data_offsets": [0]}),
        header([]),
        (1 << 62).to_bytes(8, "little") + b"{}",
        (4).to_bytes(8, "little") + b"[[[[",
        (2).to_bytes(8, "little") + b"[]",
        (60_000).to_bytes(8, "little") + b"[" * 60_000,
        b"\x00" * 7,
    ],
)
def test_a_header_that_lies_is_refused(document):
    with pytest.raises(TensorFileError):
        tensors_of(document)
