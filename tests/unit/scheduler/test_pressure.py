from dataclasses import replace

import pytest

from forgeyard.model.job import Priority
from forgeyard.model.policy import PressurePolicy, SchedulingPolicy
from forgeyard.scheduler.place import Plan, plan
from forgeyard.scheduler.pressure import Pressure, Signal, judge
from forgeyard.scheduler.readings import Readings
from tests.scheduling import a_job, a_runner, a_snapshot, amounts

LIMITS = PressurePolicy()
ROOMY = a_runner(total=amounts(cpu=90_000, memory_gib=900, disk_gib=900, slots=90))


def test_a_quiet_system_holds_nothing_back() -> None:
    assert judge(Readings(), LIMITS) == Pressure()


@pytest.mark.requirement("BKP-001", "BKP-002", "BKP-003", "BKP-004", "BKP-005")
@pytest.mark.parametrize(
    ("reading", "signal"),
    [
        (Readings(store_ms=2_000), Signal.STORAGE),
        (Readings(blobs="full"), Signal.CAS),
        (Readings(saturation=950), Signal.RUNNER_SATURATION),
        (Readings(waiting=200_000), Signal.QUEUE_DEPTH),
        (Readings(outbox_lag_ms=10_000), Signal.CONTROL_PLANE),
    ],
)
def test_each_reading_raises_its_signal_at_its_limit(reading: Readings, signal: Signal) -> None:
    assert judge(reading, LIMITS).signals == (signal,)


def planned(readings: Readings, **changed: object) -> Plan:
    jobs = [a_job(f"j{n}", **changed) for n in range(80)]
    world = a_snapshot(jobs, [ROOMY], readings=readings)
    return plan(world, SchedulingPolicy(batch=80))


@pytest.mark.requirement("BKP-006", "BKP-007")
def test_the_further_the_relay_is_behind_the_fewer_a_cycle_places() -> None:
    placed = [len(planned(Readings(outbox_lag_ms=lag)).decisions) for lag in (0, 10_000, 20_000)]
    assert placed == [80, 20, 4]


def test_low_priorities_wait_while_it_is_worst_and_are_told_so() -> None:
    made = planned(Readings(store_ms=4_000), priority=Priority.LOW)
    assert made.decisions == ()
    assert {it.code for it in made.diagnoses} == {"BACKPRESSURE"}
    assert "storage pressure" in made.diagnoses[0].sentence
    assert len(planned(Readings(store_ms=4_000)).decisions) == 4


def test_without_a_blob_store_only_jobs_that_fetch_nothing_start() -> None:
    away = Readings(blobs="the blob store cannot be written: no space left")
    fetching = planned(away, has_inputs=True)
    assert fetching.decisions == ()
    assert "no space left" in fetching.diagnoses[0].sentence
    assert not any(it.permanent for it in fetching.diagnoses)
    assert len(planned(away, has_inputs=False).decisions) == 80


def test_a_limit_of_saturation_beyond_the_possible_switches_it_off() -> None:
    off = replace(LIMITS, saturation=1_001)
    assert judge(Readings(saturation=1_000), off).signals == ()


def test_the_deeper_the_queue_the_more_urgent_a_new_run_must_be() -> None:
    graded = [judge(Readings(waiting=n), LIMITS).rejects_below for n in (0, 200_000, 400_000)]
    assert graded == [0, 100, 200]
