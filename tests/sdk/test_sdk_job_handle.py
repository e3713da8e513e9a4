"""A job's handle: waiting, values, saving."""

from __future__ import annotations

from pathlib import Path

import httpx
import numpy as np
import pytest
from safetensors.numpy import load_file, save

import weft
from sdk_fakes import FakeTime, Script, answers, job, problem, states, unavailable
from weft.api.dry_run import Passes
from weft.api.event import EventPage
from weft.api.job import ParameterInfo, ParameterList
from weft.api.lifecycle import JobState

ARRAYS = {"a.weight": np.arange(6, dtype=np.float32).reshape(2, 3), "a.bias": np.ones(2)}


def handle(script: Script) -> weft.JobHandle:
    return weft.JobHandle(script.client().http, job())


def document(arrays: dict[str, np.ndarray] = ARRAYS, step: str | None = "12") -> httpx.Response:
    return httpx.Response(200, content=save(arrays), headers={} if step is None else {"Weft-Step": step})


def test_waiting_ends_with_the_job() -> None:
    script = answers(job(), job(state=JobState.FINISHING), job(state=JobState.SUCCEEDED))
    assert handle(script).wait().state is JobState.SUCCEEDED
    assert script.time.slept == pytest.approx([0.02, 0.024])


def test_waiting_for_a_short_job_is_little_longer_than_the_job_and_for_a_long_one_it_asks_once_a_second() -> None:
    for length_s in (0.05, 0.35, 1.0, 3.0, 100.0):
        time = FakeTime()

        def asked(_: httpx.Request, time: FakeTime = time, length_s: float = length_s) -> httpx.Response:
            state = JobState.SUCCEEDED if time.now >= length_s else JobState.RUNNING
            return httpx.Response(200, content=job(state=state).model_dump_json())

        script = Script([asked], time=time)
        handle(script).wait()
        assert length_s <= script.time.now <= length_s + max(0.025, min(0.2 * length_s, 1.0))
        assert len(script.requests) <= 22 + length_s


def test_waiting_has_a_deadline_and_says_how_far_the_job_is() -> None:
    script = answers(job(state=JobState.PENDING, reason="2 workers are missing"))
    with pytest.raises(weft.WaitTimeoutError, match=r"still pending after 3 s: 2 workers are missing; it goes on"):
        handle(script).wait(timeout_s=3)
    assert script.time.now == pytest.approx(3)


@pytest.mark.parametrize("state", [JobState.PENDING, JobState.RECOVERING])
def test_waiting_warns_once_of_what_a_job_waits_for_that_stays_so(
    caplog: pytest.LogCaptureFixture, state: JobState
) -> None:
    waits = job(state=state, reason="needs 3 workers; 2 are registered, 2 are free")
    with pytest.raises(weft.WaitTimeoutError):
        handle(answers(waits)).wait(timeout_s=9)
    assert not caplog.records
    with pytest.raises(weft.WaitTimeoutError):
        handle(answers(waits)).wait(timeout_s=60)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert record.getMessage().endswith(f"is {state.value}: needs 3 workers; 2 are registered, 2 are free")
    caplog.clear()
    more = waits.model_copy(update={"reason": "needs 3 workers; 1 is registered, 1 is free"})
    handle(answers(*[waits] * 40, *[more] * 20, job(state=JobState.SUCCEEDED))).wait()
    assert [each.getMessage().rpartition(": ")[2] for each in caplog.records] == [waits.reason, more.reason]


def test_waiting_bears_a_server_that_is_started_again_but_not_for_ever() -> None:
    refused = [unavailable] * 40  # the client's own four attempts each
    assert handle(answers(job(), *refused, job(state=JobState.SUCCEEDED))).wait().state is JobState.SUCCEEDED
    script = answers(job(), unavailable)
    with pytest.raises(weft.ConnectError):
        handle(script).wait()
    assert script.time.now > 60
    late = answers(job(), unavailable)
    with pytest.raises(weft.WaitTimeoutError, match="still running after 5 s"):
        handle(late).wait(timeout_s=5)
    assert late.time.now < 10


def test_a_job_that_ended_badly_raises_with_its_reason() -> None:
    with pytest.raises(weft.JobFailedError, match="shard 1 was lost"):
        handle(answers(job(state=JobState.FAILED, reason="shard 1 was lost"))).wait()
    with pytest.raises(weft.JobCancelledError):
        handle(answers(job(state=JobState.CANCELLED))).wait()


def test_cancel_is_a_call_that_brings_the_new_state() -> None:
    script = answers(job(state=JobState.CANCELLED))
    cancelled = handle(script)
    cancelled.cancel()
    assert cancelled.state is JobState.CANCELLED
    assert (script.requests[0].method, script.requests[0].url.path) == ("POST", "/v1/jobs/job-1/cancel")


def test_stop_is_a_call_and_what_it_cannot_do_is_a_conflict() -> None:
    script = answers(
        job(reason="it stops at its next snapshot, by alice"), problem(409, "wrong-state", "none are kept")
    )
    stopped = handle(script)
    assert stopped.stop().state is JobState.RUNNING
    assert (script.requests[0].method, script.requests[0].url.path) == ("POST", "/v1/jobs/job-1/stop")
    with pytest.raises(weft.ConflictError, match="none are kept"):
        stopped.stop()


def test_a_job_that_failed_says_how_to_go_on_from_its_snapshot() -> None:
    with pytest.raises(
        weft.JobFailedError, match=r"go on from step 40 with client\.resume\('job-1'\), or: weft resume"
    ):
        handle(answers(job(state=JobState.FAILED, reason="killed", snapshot=40))).wait()


def test_parameters_are_listed() -> None:
    listed = ParameterList(parameters=[ParameterInfo(name="a", dtype="float32", shape=[2], trainable=True)])
    assert handle(answers(listed)).parameters() == listed.parameters


def test_values_are_arrays_of_one_step() -> None:
    script = answers(document())
    values = handle(script).values(["a.weight", "a.bias"])
    assert values.step == 12
    assert values.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(values[name], array, strict=True)
    assert script.requests[0].url.params.get_list("name") == ["a.weight", "a.bias"]


def test_no_name_asks_for_all_and_an_empty_list_for_nothing() -> None:
    script = answers(document())
    handle(script).values()
    assert script.requests[0].url.query == b""
    with pytest.raises(ValueError, match="leave the names out"):
        handle(script).values([])


@pytest.mark.parametrize(
    "response", [httpx.Response(200, content=b"no document", headers={"Weft-Step": "1"}), document(step=None)]
)
def test_values_that_make_no_sense_are_refused(response: httpx.Response) -> None:
    with pytest.raises(weft.ProtocolError):
        handle(answers(response)).values()


def test_saved_values_are_a_safetensors_file(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    path.write_bytes(b"what was there")
    assert handle(answers(document())).save(path) == 12
    np.testing.assert_array_equal(load_file(path)["a.weight"], ARRAYS["a.weight"])
    assert [p.name for p in tmp_path.iterdir()] == ["weights.safetensors"]


def test_a_download_that_breaks_is_begun_again_from_nothing(tmp_path: Path) -> None:
    class Broken(httpx.SyncByteStream):
        def __iter__(self):  # type: ignore[no-untyped-def]  # a generator of bytes
            yield b"half of"
            raise httpx.ReadError("reset")

    path = tmp_path / "weights.safetensors"
    handle(answers(httpx.Response(200, stream=Broken()), document())).save(path)
    assert path.read_bytes() == save(ARRAYS)


def test_a_refused_download_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    path.write_bytes(b"what was there")
    with pytest.raises(weft.ConflictError):
        handle(answers(problem(409, "wrong-state"))).save(path)
    assert path.read_bytes() == b"what was there"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("tail", [None, 301])
def test_the_log_so_far_is_read_page_by_page_and_not_what_happens_meanwhile(tail: int | None) -> None:
    """A job that runs may write events as fast as they are read."""
    events = states(*["running"] * 303)
    script = answers(
        EventPage(events=events[:200], after=200, ended=False),
        EventPage(events=events[200 : 301 if tail is None else 303], after=303, ended=False),
    )
    assert list(handle(script).log(tail=tail)) == events[:301]
    assert [request.url.params["after"] for request in script.requests] == ["0", "200"]
    assert [request.url.params.get("tail") for request in script.requests] == [tail and str(tail), None]


def test_programs_come_as_json_and_as_text() -> None:
    assert handle(answers(httpx.Response(200, json={"train": {}}))).programs() == {"train": {}}
    assert handle(answers(httpx.Response(200, text="train:\n"))).programs_text() == "train:\n"


def test_passes_come_as_text() -> None:
    for passes, form in ((Passes.SHORT, "passes"), (Passes.FULL, "passes-full")):
        script = answers(httpx.Response(200, text="both\n"))
        assert handle(script).passes_text(passes) == "both\n"
        assert script.requests[0].url.params["format"] == form


def test_an_onnx_file_does_not_get_the_name_of_a_parameter_file() -> None:
    script = answers(job())
    with pytest.raises(weft.ArgumentError, match=r"w\.safetensors would be an ONNX file: .* alone with save\(path\)$"):
        handle(script).export_onnx("w.safetensors")
    assert not script.requests
