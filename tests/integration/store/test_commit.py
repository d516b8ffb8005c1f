"""A plan is advice; the commit gives away exactly what there is, once."""

import json
import random

import pytest
import sqlalchemy as sa

from forgeyard.errors import NotFound
from forgeyard.model.capability import Requirements
from forgeyard.model.runner import ResourcePressure
from forgeyard.scheduler.diagnose import Diagnosis, DiagnosticCode
from forgeyard.scheduler.grant import Verdict
from forgeyard.scheduler.place import Decision, Plan
from forgeyard.store import bulk, commit, runs, tables
from forgeyard.store.engine import read
from tests.builders import (
    a_job_spec,
    job_states,
    jobs_of,
    some_capabilities,
    some_resources,
)
from tests.leasing import Desk

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("recorded")]


@pytest.fixture
def desk(engine: sa.Engine) -> Desk:
    return Desk(engine)


def a_plan(*decisions: tuple[str, list[str]], diagnoses: tuple[Diagnosis, ...] = ()) -> Plan:
    """Decide by hand: a job, and its candidates from the best on."""
    return Plan(
        decisions=tuple(
            Decision(
                job_id=job_id,
                candidates=tuple((runner, 900 - place) for place, runner in enumerate(runners)),
            )
            for job_id, runners in decisions
        ),
        diagnoses=diagnoses,
        eligible=len(decisions),
        runners=2,
    )


def job_ids(desk: Desk, run_id: str) -> list[str]:
    with read(desk.engine) as connection:
        rows = jobs_of(connection, run_id)
    return [rows[name]["job_id"] for name in sorted(rows)]


def numbered(count: int) -> list[str]:
    return [f"job-{number}" for number in range(count)]


@pytest.mark.requirement(
    "LSE-008", "RCN-019", "INV-005", "INV-021", "INV-027", "PRI-005", "PRI-037"
)
def test_a_plan_is_stored_and_grants_nothing(desk: Desk) -> None:
    desk.register()
    run_id = desk.submit()
    cycle_id = desk.plan()
    (cycle,) = desk.rows(tables.cycles)
    assert (cycle["cycle_id"], cycle["planned"], cycle["eligible"]) == (cycle_id, 1, 1)
    assert cycle["policy_digest"] == desk.policy.digest()
    assert (cycle["granted"], cycle["committed_at"]) == (None, None)
    (placement,) = desk.rows(tables.placements)
    assert placement["verdict"] is None
    assert desk.rows(tables.leases) == []
    with read(desk.engine) as connection:
        assert job_states(connection, run_id) == {"build": "eligible"}


@pytest.mark.requirement(
    "LSE-004",
    "LSE-008",
    "DSP-004",
    "PHA-004",
    "RES-009",
    "LSE-013",
    "ACC-009",
    "INV-022",
    "INV-026",
    "RES-010",
    "POL-008",
)
def test_a_grant_writes_everything_at_once(desk: Desk) -> None:
    registered = desk.register()
    run_id = desk.submit(a_job_spec(resources=some_resources(cpu=1_500)), name="nightly")
    cycle_id = desk.plan()
    outcome = desk.commit(cycle_id)
    (job_id,) = job_ids(desk, run_id)
    assert (outcome.granted, outcome.refused) == (1, 0)
    assert outcome.verdicts == ((job_id, Verdict.GRANTED),)
    (lease,) = desk.leases()
    assert (lease.job_id, lease.session_id, lease.epoch) == (job_id, registered.session_id, 1)
    assert desk.states(lease) == ("offered", "leased", "leased")
    attempt = desk.row(tables.attempts, lease.attempt_id)
    runner = desk.row(tables.runners, registered.runner_id)
    assert attempt["number"] == 1
    assert attempt["policy_digest"] == desk.policy.digest()
    assert attempt["capability_digest"] == runner["capability_digest"]
    assert attempt["score"] > 0
    row = desk.row(tables.leases, lease.lease_id)
    assert row["expires_at"] == row["offered_at"] + desk.policy.lease.offer_ttl
    assert row["grace_ms"] == desk.policy.lease.connectivity_grace
    assert desk.reserved(registered.runner_id)["cpu_milli"] == 1_500
    job = desk.row(tables.jobs, job_id)
    assert (job["version"], job["epoch"], job["attempts_made"]) == (2, 1, 1)
    assert desk.deadlines(job_id) == set()
    (event,) = desk.rows(tables.outbox)
    assert (event["stream"], event["sequence"]) == (lease.attempt_id, 1)
    assert json.loads(event["payload"]) == {
        "run_id": run_id,
        "job_id": job_id,
        "number": 1,
        "attempt_id": lease.attempt_id,
        "job_name": "build",
        "run_name": "nightly",
        "runner_name": "runner-1",
        # The offer, three phases with their slack, and the time to settle.
        "backstop_ms": 30_000 + 600_000 + 3_600_000 + 600_000 + 3 * 15_000 + 10_000,
    }
    history = desk.rows(tables.history, run_id=run_id, reason=f"granted by cycle {cycle_id}")
    assert {(line["kind"], line["before"], line["after"]) for line in history} == {
        ("job", "eligible", "leased"),
        ("attempt", None, "leased"),
        ("lease", None, "offered"),
    }


@pytest.mark.requirement("RES-014")
def test_committing_twice_tells_the_same_and_writes_nothing(desk: Desk) -> None:
    desk.register(total=some_resources(cpu=1_000, slots=2))
    desk.submit(*(a_job_spec(name) for name in numbered(3)))
    runner_id = desk.rows(tables.runners)[0]["runner_id"]
    job_names = [row["job_id"] for row in desk.rows(tables.jobs)]
    cycle_id = desk.plan(a_plan(*((job_id, [runner_id]) for job_id in job_names)))
    first = desk.commit(cycle_id)
    everything = {table.name: desk.rows(table) for table in tables.metadata.sorted_tables}
    second = desk.commit(cycle_id)
    assert second == first
    assert (first.granted, first.refused) == (1, 2)
    assert {table.name: desk.rows(table) for table in tables.metadata.sorted_tables} == everything


def test_zero_grants_are_a_verdict_too(desk: Desk) -> None:
    registered = desk.register()
    desk.submit()
    cycle_id = desk.plan()
    desk.heartbeat(registered.session_id, draining=True)
    first = desk.commit(cycle_id)
    assert (first.granted, first.refused) == (0, 1)
    desk.heartbeat(registered.session_id)
    assert desk.commit(cycle_id) == first
    assert desk.rows(tables.leases) == []


def test_an_empty_plan_can_be_committed(desk: Desk) -> None:
    outcome = desk.cycle()
    assert outcome == commit.CommitOutcome(granted=0, refused=0, verdicts=())
    assert desk.rows(tables.cycles)[0]["committed_at"] is not None


def test_a_cycle_nobody_planned_is_not_found(desk: Desk) -> None:
    with pytest.raises(NotFound):
        desk.commit(4_711)


@pytest.mark.requirement("LSE-005", "RCN-025")
def test_a_job_that_another_scheduler_leased_first_is_passed_over(desk: Desk) -> None:
    desk.register()
    desk.submit(*(a_job_spec(name) for name in numbered(2)))
    late = desk.plan()
    assert desk.cycle().granted == 2
    outcome = desk.commit(late)
    assert outcome.granted == 0
    assert {verdict for _, verdict in outcome.verdicts} == {Verdict.JOB_GONE}
    assert len(desk.leases()) == 2


@pytest.mark.requirement("LSE-004", "INV-001")
def test_a_cancelled_job_is_not_leased(desk: Desk) -> None:
    desk.register()
    run_id = desk.submit(*(a_job_spec(name) for name in numbered(2)))
    cycle_id = desk.plan()
    desk.change(
        runs.cancel_job,
        run_id,
        "job-1",
        reason="changed my mind",
        actor="tester",
        channel="test",
        policy=desk.policy.lease,
    )
    first, second = job_ids(desk, run_id)
    assert dict(desk.commit(cycle_id).verdicts) == {
        first: Verdict.GRANTED,
        second: Verdict.CANCELLED,
    }
    assert [lease.job_id for lease in desk.leases()] == [first]


@pytest.mark.requirement("LSE-009", "RCN-028")
def test_a_runner_gone_since_the_plan_is_replaced_by_the_next_candidate(desk: Desk) -> None:
    desk.register("runner-1")
    desk.register("runner-2")
    desk.submit()
    cycle_id = desk.plan()
    candidates = json.loads(desk.rows(tables.placements)[0]["candidates"])
    (best, _, _), (next_best, score, _) = candidates
    session_id = desk.row(tables.runners, best)["session_id"]
    desk.heartbeat(session_id, pressure=ResourcePressure.CRITICAL)
    assert desk.commit(cycle_id).granted == 1
    (lease,) = desk.leases()
    assert lease.runner_id == next_best
    assert desk.row(tables.attempts, lease.attempt_id)["score"] == score
    assert desk.rows(tables.placements)[0]["runner_id"] == next_best


@pytest.mark.requirement("LSE-004", "RCN-028", "ACC-012", "ACC-013", "INV-032")
@pytest.mark.parametrize(
    "changed",
    [
        {"state": "offline", "session_id": None},
        {"state": "draining"},
        {"state": "saturated"},
        {"suspect": 1},
        {"session_id": None},
    ],
)
def test_a_runner_that_takes_no_work_any_more_gets_none(
    desk: Desk, changed: dict[str, object]
) -> None:
    registered = desk.register()
    desk.submit()
    cycle_id = desk.plan()
    desk.overwrite(tables.runners, registered.runner_id, **changed)
    outcome = desk.commit(cycle_id)
    assert [verdict for _, verdict in outcome.verdicts] == [Verdict.RUNNER_UNAVAILABLE]
    assert desk.leases() == []


def test_the_session_of_the_moment_gets_the_lease_not_the_planned_one(desk: Desk) -> None:
    desk.register()
    desk.submit()
    cycle_id = desk.plan()
    again = desk.register()
    assert desk.commit(cycle_id).granted == 1
    assert desk.leases()[0].session_id == again.session_id


@pytest.mark.requirement("LSE-006", "RES-016")
@pytest.mark.parametrize("short", ["cpu", "memory", "disk", "slots"])
def test_as_many_as_fit_are_granted_in_the_order_of_the_plan(desk: Desk, short: str) -> None:
    room = {"cpu": 10_000, "memory": 10_000, "disk": 10_000, "slots": 10}
    need = {"cpu": 100, "memory": 100, "disk": 100, "slots": 1}
    room[short] = 3 * need[short]
    desk.register(total=some_resources(**room))
    spec = some_resources(**need)
    desk.submit(*(a_job_spec(name, resources=spec) for name in numbered(5)))
    runner_id = desk.rows(tables.runners)[0]["runner_id"]
    order = sorted((row["job_id"] for row in desk.rows(tables.jobs)), reverse=True)
    cycle_id = desk.plan(a_plan(*((job_id, [runner_id]) for job_id in order)))
    outcome = desk.commit(cycle_id)
    assert outcome.verdicts == (
        *((job_id, Verdict.GRANTED) for job_id in order[:3]),
        *((job_id, Verdict.NO_CAPACITY) for job_id in order[3:]),
    )
    assert desk.reserved(runner_id)["slots"] == 3


@pytest.mark.requirement("RES-006")
def test_headroom_is_never_given_away(desk: Desk) -> None:
    desk.register(
        total=some_resources(cpu=1_000, slots=4), headroom=some_resources(cpu=600, slots=0)
    )
    desk.submit()
    runner_id = desk.rows(tables.runners)[0]["runner_id"]
    job_id = desk.rows(tables.jobs)[0]["job_id"]
    outcome = desk.commit(desk.plan(a_plan((job_id, [runner_id]))))
    assert outcome.verdicts == ((job_id, Verdict.NO_CAPACITY),)


def test_a_second_attempt_has_the_next_number_and_epoch(desk: Desk) -> None:
    lease = desk.offered()
    desk.reject(lease)
    desk.register("runner-2")
    assert desk.cycle().granted == 1
    (again,) = desk.leases(state="offered")
    assert again.epoch == lease.epoch + 1
    assert desk.row(tables.attempts, again.attempt_id)["number"] == 2


@pytest.mark.requirement("DIA-017", "DIA-018")
def test_only_changed_diagnoses_are_written_and_a_grant_clears_them(desk: Desk) -> None:
    run_id = desk.submit(*(a_job_spec(name) for name in numbered(2)))
    first, second = job_ids(desk, run_id)

    def diagnose(job_id: str, sentence: str) -> Diagnosis:
        code = DiagnosticCode.NO_RUNNERS
        return Diagnosis(job_id=job_id, code=code, sentence=sentence, permanent=False)

    both = (diagnose(first, "no runner"), diagnose(second, "no runner"))
    desk.plan(a_plan(diagnoses=both))
    desk.overwrite(tables.jobs, second, state="pending")
    changed = (diagnose(first, "none at all"), diagnose(second, "none at all"))
    desk.plan(a_plan(diagnoses=changed))
    assert json.loads(desk.row(tables.jobs, first)["diagnosis"])["sentence"] == "no runner"
    long_since = json.dumps({**json.loads(desk.row(tables.jobs, first)["diagnosis"]), "at": 0})
    desk.overwrite(tables.jobs, first, diagnosis=long_since)
    desk.overwrite(tables.jobs, second, diagnosis=long_since)
    desk.plan(a_plan(diagnoses=changed))
    sentences = {
        row["job_id"]: json.loads(row["diagnosis"])["sentence"] for row in desk.rows(tables.jobs)
    }
    assert sentences == {first: "none at all", second: "no runner"}
    assert desk.row(tables.jobs, first)["version"] == 1
    desk.register()
    assert desk.cycle().granted == 1
    assert desk.row(tables.jobs, first)["diagnosis"] is None


@pytest.mark.requirement("RES-014")
def test_ids_are_drawn_by_the_plan_so_two_plans_never_share_one(desk: Desk) -> None:
    desk.register()
    desk.submit()
    desk.plan()
    desk.plan()
    rows = desk.rows(tables.placements)
    assert len({row["attempt_id"] for row in rows}) == 2
    assert len({row["lease_id"] for row in rows}) == 2


def test_bulk_writes_keep_nulls_and_touch_no_other_row(desk: Desk) -> None:
    rows = [
        {"digest": f"sha256:{number}", "size_bytes": number, "created_at": 1, "used_at": 1}
        for number in range(5)
    ]
    desk.change(bulk.insert, tables.blobs, rows)
    desk.change(bulk.insert, tables.blobs, [])
    changed = [{"digest": f"sha256:{number}", "size_bytes": 10 * number} for number in (1, 3)]
    random.Random(1).shuffle(changed)
    desk.change(bulk.update, tables.blobs, changed, keys=("digest",))
    desk.change(bulk.update, tables.blobs, [], keys=("digest",))
    sizes = [
        row["size_bytes"] for row in sorted(desk.rows(tables.blobs), key=lambda r: r["digest"])
    ]
    assert sizes == [0, 10, 2, 30, 4]
    notes = [
        {"partition": "a", "generation": 1, "reason": "x"},
        {"partition": "b", "generation": 2, "reason": "y"},
    ]
    desk.change(bulk.insert, tables.wakes, notes)
    assert {row["signalled"] for row in desk.rows(tables.wakes)} == {0}


@pytest.mark.requirement("PRI-030", "ELG-028", "TST-005")
def test_a_runner_that_registered_with_other_capabilities_since_the_plan_gets_nothing(
    desk: Desk,
) -> None:
    desk.register("runner-1", capabilities=some_capabilities(labels={"zone": "a"}))
    desk.submit(a_job_spec(requires=Requirements(labels={"zone": "a"})))
    cycle_id = desk.plan()
    desk.register("runner-1", capabilities=some_capabilities(labels={"zone": "b"}))
    outcome = desk.commit(cycle_id)
    assert [verdict for _, verdict in outcome.verdicts] == [Verdict.RUNNER_UNAVAILABLE]
    desk.register("runner-1", capabilities=some_capabilities(labels={"zone": "a"}))
    assert desk.cycle().granted == 1
