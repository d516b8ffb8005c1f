from dataclasses import replace

import pytest

from forgeyard.model.runner import ResourcePressure, RunnerState
from tests.scheduling import NOW, a_job, a_runner, a_snapshot, amounts


@pytest.mark.requirement("RES-002", "RES-006", "RES-003")
def test_headroom_is_never_allocatable_and_reservations_are_never_free() -> None:
    runner = a_runner(
        total=amounts(cpu=4_000, memory_gib=16, disk_gib=100, slots=4),
        headroom=amounts(cpu=500, memory_gib=2, disk_gib=10, slots=0),
        reserved=amounts(cpu=1_000, memory_gib=4, disk_gib=5, slots=1),
    )
    assert runner.allocatable == amounts(cpu=3_500, memory_gib=14, disk_gib=90, slots=4)
    assert runner.free == amounts(cpu=2_500, memory_gib=10, disk_gib=85, slots=3)


def test_a_digest_names_the_content_whatever_its_order() -> None:
    jobs = [a_job("one"), a_job("two", refused_by={"rnr_a": "x", "rnr_b": "y"})]
    runners = [a_runner("one"), a_runner("two")]
    again = [replace(jobs[1], refused_by={"rnr_b": "y", "rnr_a": "x"}), jobs[0]]
    snapshot = a_snapshot(jobs, runners)
    assert snapshot.digest() == a_snapshot(again, runners[::-1]).digest()
    assert snapshot.digest().startswith("sha256:")


@pytest.mark.parametrize(
    "changed",
    [
        a_snapshot([a_job()], [a_runner()], taken_at=NOW + 1),
        a_snapshot([a_job()], [a_runner()], waiting=2),
        a_snapshot([], [a_runner()], waiting=1),
        a_snapshot([a_job(refused_by={"rnr_linux-1": "busy"})], [a_runner()]),
        a_snapshot([a_job(resources=amounts(cpu=2_000))], [a_runner()]),
        a_snapshot([a_job(requirement_class="other")], [a_runner()]),
        a_snapshot([a_job()], [a_runner(state=RunnerState.DRAINING)]),
        a_snapshot([a_job()], [a_runner(suspect=True)]),
        a_snapshot([a_job()], [a_runner(reserved=amounts())]),
        a_snapshot([a_job()], [a_runner(capability_digest="other")]),
        a_snapshot([a_job()], [a_runner(pressure=ResourcePressure.CPU)]),
        a_snapshot([a_job()], [a_runner(session_id=None)]),
    ],
)
def test_whatever_can_change_a_decision_changes_the_digest(changed: object) -> None:
    assert changed.digest() != a_snapshot([a_job()], [a_runner()]).digest()
