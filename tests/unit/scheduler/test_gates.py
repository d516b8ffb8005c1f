import pytest

from forgeyard.model.units import GIB, Bytes, MilliCpu
from forgeyard.model.wishes import Wishes
from forgeyard.scheduler.diagnose import DiagnosticCode
from forgeyard.scheduler.explain import explain
from forgeyard.scheduler.gates import GateCode, Gates
from forgeyard.scheduler.place import plan
from forgeyard.scheduler.scopes import ROOT, Quota, SchedulingScope, Usage
from forgeyard.scheduler.snapshot import SchedulingJob
from forgeyard.scheduler.standing import SchedulingPool
from tests.scheduling import POLICY, a_job, a_runner, a_snapshot, amounts

LEVELS = ("tenant", "organization", "project", "queue")


def a_scope(name: str = "que_default", kind: str = "queue", **changed: object) -> SchedulingScope:
    return SchedulingScope(scope_id=name, name=name, kind=kind, **changed)


def gates(*scopes: SchedulingScope, **keys: str) -> Gates:
    return Gates({scope.scope_id: scope for scope in scopes}, keys)


def with_keys(*keys: str) -> SchedulingJob:
    return a_job(wishes=Wishes(keys=keys))


@pytest.mark.requirement("QUO-002", "QUO-005", "QUO-006")
@pytest.mark.parametrize(
    ("quota", "named"),
    [
        (Quota(jobs=2), "jobs"),
        (Quota(cpu=MilliCpu(2_500)), "cpu"),
        (Quota(memory=Bytes(2 * GIB + 1)), "memory"),
    ],
)
@pytest.mark.parametrize("scope_id", [ROOT, "tnt_default", "prj_default", "que_default"])
def test_a_quota_lets_as_many_pass_as_it_says_at_every_level(
    scope_id: str, quota: Quota, named: str
) -> None:
    gate = gates(a_scope(scope_id, quota=quota))
    for _ in range(2):
        assert gate.against(a_job()) is None
        gate.admit(a_job())
    shut = gate.against(a_job())
    assert shut is not None
    assert (shut.code, shut.subject) == (GateCode.QUOTA_BLOCKED, scope_id)
    assert f"quota of {named}" in shut.text


@pytest.mark.requirement("QUO-008")
def test_a_burst_goes_so_far_and_no_further() -> None:
    gate = gates(a_scope(quota=Quota(jobs=2, burst_percent=50), used=Usage(jobs=2)))
    assert gate.against(a_job()) is not None
    assert gate.against_bursting(a_job()) is None
    gate.admit(a_job())
    assert gate.against_bursting(a_job()) is not None


def test_a_pause_counts_before_everything_else_and_shows_its_note() -> None:
    paused = a_scope("acme", "tenant", paused=True, note="back at nine", quota=Quota(jobs=0))
    job = a_job(tenant_id="acme", wishes=Wishes(keys=("k",)))
    shut = gates(paused, k="other").against(job)
    assert shut is not None
    assert (shut.code, shut.text) == (
        GateCode.QUEUE_PAUSED,
        "tenant acme is paused: back at nine",
    )


def test_a_key_is_free_held_or_taken_by_whoever_passed_before() -> None:
    gate = gates(staging="deploy")
    shut = gate.against(with_keys("free", "staging"))
    assert shut is not None
    assert (shut.code, shut.subject) == (GateCode.KEY_HELD, "staging")
    assert gate.against(with_keys("free")) is None
    gate.admit(with_keys("free"))
    assert gate.against(with_keys("free")) is not None


MAC, LINUX = SchedulingPool(pool_id="mac"), SchedulingPool(pool_id="linux")


@pytest.mark.requirement("QUO-006")
def test_a_full_pool_keeps_a_job_from_its_runners_and_from_no_others() -> None:
    full = a_scope("mac", "pool", quota=Quota(jobs=1), used=Usage(jobs=1))
    runners = [
        a_runner("a", pool=MAC),
        a_runner("b", pool=LINUX),
    ]
    seen = a_snapshot([a_job()], runners, scopes={"mac": full})
    (decision,) = plan(seen, POLICY).decisions
    assert [name for name, _ in decision.candidates] == ["rnr_b"]
    told = explain(a_job(), seen, POLICY)
    assert told.winner == "b"
    shut = next(verdict for verdict in told.runners if verdict.name == "a")
    assert (shut.rank, shut.pool_gate) == (None, "pool mac has used up its quota of jobs")


@pytest.mark.requirement("QUO-003", "QUO-004", "QUO-006")
@pytest.mark.requirement("DIA-016")
def test_a_job_that_only_a_full_pool_could_run_is_told_of_its_quota() -> None:
    full = a_scope("mac", "pool", quota=Quota(jobs=1), used=Usage(jobs=1))
    seen = a_snapshot([a_job()], [a_runner("a", pool=MAC)], scopes={"mac": full})
    made = plan(seen, POLICY)
    assert made.decisions == ()
    (diagnosis,) = made.diagnoses
    assert diagnosis.code is DiagnosticCode.QUOTA_BLOCKED
    assert diagnosis.sentence == "Waiting: pool mac has used up its quota of jobs."
    assert explain(a_job(), seen, POLICY).sentence == diagnosis.sentence


@pytest.mark.requirement("QUO-008")
def test_a_pool_lends_what_its_burst_allows_after_everybody_else_was_served() -> None:
    pool = a_scope("mac", "pool", quota=Quota(jobs=1, burst_percent=100))
    room = amounts(cpu=9_000, memory_gib=90, disk_gib=90, slots=9)
    runners = [a_runner("a", pool=MAC, total=room)]
    jobs = [a_job(str(number)) for number in range(4)]
    made = plan(a_snapshot(jobs, runners, scopes={"mac": pool}), POLICY)
    assert len(made.decisions) == 2
    assert {one.code for one in made.diagnoses} == {DiagnosticCode.QUOTA_BLOCKED}


@pytest.mark.case("SP-089")
def test_a_job_that_only_a_key_keeps_is_told_of_the_key_and_its_holder() -> None:
    job = with_keys("staging")
    seen = a_snapshot([job], [a_runner()], keys={"staging": "deploy"})
    told = explain(job, seen, POLICY)
    assert told.code is DiagnosticCode.KEY_HELD
    assert told.sentence == "Waiting: job deploy holds the key staging."
    assert told.winner is None
