"""The simulation's clock, threads, cores and wires do what can be worked out by hand."""

from __future__ import annotations

import pytest

from event_simulation import Host, Simulation, SimulationError, Thread, Wire


def ends(capacity: tuple[float, ...], costs: list[list[float]], wake_s: float = 0.0) -> list[float]:
    """When each thread has done its tasks, on one host."""
    simulation = Simulation()
    host = Host(simulation, capacity)
    found = [0.0] * len(costs)

    def note(place: int) -> None:
        found[place] = simulation.now

    for place, own in enumerate(costs):
        thread = Thread(simulation, host, wake_s)
        for cost_s in own:
            thread.do(cost_s, lambda place=place: note(place))
    simulation.run()
    return found


def test_a_thread_does_its_tasks_one_after_the_other() -> None:
    assert ends((1.0, 2.0), [[1.0, 2.0]]) == pytest.approx([3.0])


def test_threads_beyond_the_cores_share_them_alike() -> None:
    assert ends((1.0, 2.0), [[1.0], [2.0]]) == pytest.approx([1.0, 2.0])
    assert ends((1.0,), [[1.0], [1.0]]) == pytest.approx([2.0, 2.0])
    # Three at 2/3 until the first ends at 1.5 with 1 done each; then two with a core each.
    assert ends((1.0, 2.0), [[1.0], [2.0], [2.0]]) == pytest.approx([1.5, 2.5, 2.5])


def test_cores_that_slow_each_other_down_do_less_together() -> None:
    assert ends((1.0, 1.5), [[3.0], [3.0]]) == pytest.approx([4.0, 4.0])


def test_a_sleeping_thread_starts_later_and_an_awake_one_at_once() -> None:
    assert ends((1.0,), [[1.0, 1.0]], wake_s=0.25) == pytest.approx([2.25])


def test_no_core_time_is_lost_or_made() -> None:
    simulation = Simulation()
    host = Host(simulation, (1.0, 2.0))
    threads = [Thread(simulation, host) for _ in range(5)]
    for number, thread in enumerate(threads):
        for place in range(20):
            thread.do(0.01 * (1 + (number * 7 + place) % 5), lambda: None)
    simulation.run()
    assert host.busy_s == pytest.approx(sum(thread.busy_s for thread in threads))
    assert simulation.now >= host.busy_s / 2


def test_a_wire_carries_in_order_at_its_rate() -> None:
    simulation = Simulation()
    wire, arrivals = Wire(simulation, 100.0), []
    for nbytes in (50, 100):
        wire.carry(nbytes, lambda: arrivals.append(simulation.now))
    simulation.after(5.0, lambda: wire.carry(10, lambda: arrivals.append(simulation.now)))
    simulation.run()
    assert arrivals == pytest.approx([0.5, 1.5, 5.1])
    assert wire.busy_s == pytest.approx(1.6)


def test_events_of_one_time_keep_their_order() -> None:
    simulation, found = Simulation(), []
    for number in range(5):
        simulation.after(1.0, lambda number=number: found.append(number))
    simulation.run()
    assert found == list(range(5))


def test_what_cannot_be_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = Simulation()
    for delay_s in (-1.0, float("nan"), float("inf")):
        with pytest.raises(SimulationError, match="an event after"):
            simulation.after(delay_s, lambda: None)
    with pytest.raises(SimulationError, match="capacity"):
        Host(simulation, ())
    monkeypatch.setattr("event_simulation.LARGEST_RUN", 100)

    def again() -> None:
        simulation.after(0.0, again)

    again()
    with pytest.raises(SimulationError, match="no end after 100 events"):
        simulation.run()
