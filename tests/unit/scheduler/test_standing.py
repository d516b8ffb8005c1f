"""Pools, regions and old reports in the rule, and who wants what in explanations."""

from dataclasses import replace

import pytest

from forgeyard.model.capability import Capabilities, Platform, Requirements, TrustClass
from forgeyard.model.location import Location
from forgeyard.model.origin import Origin, OriginKind
from forgeyard.model.policy import SchedulingPolicy, StalenessPolicy
from forgeyard.model.units import Millis
from forgeyard.model.wishes import Purpose, Wishes
from forgeyard.scheduler.eligibility import is_eligible, rejections
from forgeyard.scheduler.explain import explain
from forgeyard.scheduler.place import plan
from forgeyard.scheduler.rejection import RejectionCode
from forgeyard.scheduler.snapshot import SchedulingJob, SchedulingRunner, Snapshot
from forgeyard.scheduler.standing import Freshness, SchedulingPool, Sharing, freshness, is_own_pool
from tests.scheduling import a_job, a_runner, a_snapshot, amounts

IOS = SchedulingPool(pool_id="pol_ios", name="ios")
KEPT = replace(
    IOS,
    owner_id="prj_mobile",
    owner="project mobile",
    sharing=Sharing.RESERVED,
    spillover=True,
)
RULED = Origin(kind=OriginKind.POLICY, detail="deploy jobs", policy_version=3)


def texts(job: SchedulingJob, runner: SchedulingRunner) -> list[str]:
    return [rejection.text for rejection in rejections(job, runner)]


@pytest.mark.parametrize(
    ("changed", "text", "permanent"),
    [
        (
            {"draining": True, "reason": "new racks"},
            "is in pool ios, which drains: new racks",
            False,
        ),
        (
            {"closes_in": Millis(0), "reason": "kernel"},
            "is in pool ios, which is closed for maintenance: kernel",
            False,
        ),
        (
            {"closes_in": Millis(60_000), "reason": "kernel"},
            "is in pool ios, which closes soon for maintenance: kernel",
            False,
        ),
        (
            {"trust": TrustClass.CONFIDENTIAL},
            "needs trust confidential, like all of pool ios, has trust trusted_internal",
            True,
        ),
        (
            {"sharing": Sharing.RESERVED, "owner": "project mobile"},
            "needs a pool open to it, has pool ios, reserved for project mobile",
            True,
        ),
    ],
)
@pytest.mark.requirement("DIA-003")
@pytest.mark.requirement("TST-002")
def test_a_pool_says_what_it_has_against_a_job(
    changed: dict[str, object], text: str, permanent: bool
) -> None:
    job = replace(a_job(), lasts=60_001)
    runner = replace(a_runner(), pool=replace(IOS, **changed))
    (rejection,) = rejections(job, runner)
    assert (rejection.text, rejection.permanent) == (text, permanent)
    assert not is_eligible(job, runner)


@pytest.mark.requirement("RUN-004")
def test_a_job_that_ends_before_maintenance_is_taken() -> None:
    closing = replace(a_runner(), pool=replace(IOS, closes_in=Millis(60_000)))
    assert is_eligible(replace(a_job(), lasts=60_000), closing)


@pytest.mark.requirement("ELG-030")
def test_a_job_goes_only_to_the_pools_and_regions_that_it_names() -> None:
    here = replace(a_runner(), pool=IOS, location=Location(region="eu"))
    wanted = Requirements(pools=("linux", "mac"), regions=("us",))
    assert texts(a_job(requirements=wanted), here) == [
        "needs pool linux or mac, has pool ios",
        "needs region us, has region eu",
    ]
    nowhere = replace(here, location=Location())
    codes = [it.code for it in rejections(a_job(requirements=wanted), nowhere)]
    assert codes == [RejectionCode.POOL_NOT_ALLOWED, RejectionCode.REGION_UNKNOWN]
    assert is_eligible(a_job(requirements=Requirements(pools=("ios",), regions=("eu",))), here)


@pytest.mark.requirement("ELG-029")
@pytest.mark.parametrize(
    ("age", "found"), [(0, "fresh"), (10, "fresh"), (11, "aged"), (20, "aged"), (21, "stale")]
)
def test_the_age_of_a_report_is_judged_by_policy(age: int, found: str) -> None:
    rule = StalenessPolicy(general=Millis(20), sensitive=Millis(10))
    assert freshness(1_000, 1_000 + age, rule) == found
    assert freshness(0, 10**15, StalenessPolicy(general=Millis(0), sensitive=Millis(0))) == "fresh"


@pytest.mark.requirement("ELG-029")
def test_what_could_do_harm_wants_a_fresher_report_than_the_rest() -> None:
    aged = replace(a_runner(), freshness=Freshness.AGED)
    stale = replace(aged, freshness=Freshness.STALE)
    careful = replace(a_job(), wishes=Wishes(purpose=Purpose.SIGNING))
    assert is_eligible(a_job(), aged)
    assert texts(careful, aged) == ["is described by a report that is too old"]
    assert texts(a_job(), stale) == texts(careful, aged)
    secret = a_job(requirements=Requirements(trust=TrustClass.CONFIDENTIAL))
    assert not is_eligible(secret, replace(aged, trust=TrustClass.CONFIDENTIAL))


def _world(*jobs: SchedulingJob) -> Snapshot:
    runner = replace(a_runner(total=replace(a_runner().total, slots=1)), pool=KEPT)
    return a_snapshot(jobs=jobs, runners=(runner,))


@pytest.mark.requirement("RES-021", "RES-023")
def test_a_reserved_pool_lends_only_what_its_owner_has_no_use_for() -> None:
    other = a_job("1")
    own = replace(a_job("2"), project_id="prj_mobile")
    assert is_own_pool(own, KEPT)
    assert not is_own_pool(other, KEPT)
    policy = SchedulingPolicy()
    assert [it.job_id for it in plan(_world(other), policy).decisions] == ["job_1"]
    assert [it.job_id for it in plan(_world(other, own), policy).decisions] == ["job_2"]
    two = replace(a_job("3"), project_id="prj_mobile", eligible_at=own.eligible_at + 1)
    made = plan(_world(own, two, other), policy)
    assert [it.job_id for it in made.decisions] == ["job_2"]
    told = {it.job_id: it.sentence for it in made.diagnoses}
    assert "it is kept for the owner of its pool" in told["job_1"]


@pytest.mark.requirement("RES-023")
def test_an_owner_whose_job_could_never_run_there_blocks_no_lending() -> None:
    mac = Requirements(platform=Platform.MACOS)
    own = replace(a_job("2", requirements=mac), project_id="prj_mobile")
    made = plan(_world(a_job("1"), own), SchedulingPolicy())
    assert [it.job_id for it in made.decisions] == ["job_1"]


@pytest.mark.requirement("ELG-035", "ELG-036", "ACC-033")
def test_an_explanation_names_the_rule_that_wants_what_is_missing() -> None:
    wanted = Requirements(
        trust=TrustClass.SIGNING_RESTRICTED,
        labels={"zone": "b"},
        origins={"trust": RULED, "labels.zone": Origin(kind=OriginKind.ECOSYSTEM, detail="Eos")},
    )
    job = a_job(requirements=wanted)
    world = a_snapshot(jobs=(job,), runners=(a_runner(),))
    found = explain(job, world, SchedulingPolicy())
    assert "trust signing_restricted (policy 3: deploy jobs)" in found.requirements
    assert "label zone=b (ecosystem: Eos)" in found.requirements
    assert "it needs trust signing_restricted (policy 3: deploy jobs)" in found.sentence
    (runner,) = found.runners
    assert [reason.text for reason in runner.rejections] == [
        "needs trust signing_restricted (policy 3: deploy jobs), has trust trusted_internal",
        "needs label zone=b (ecosystem: Eos), has label zone=a",
    ]
    assert plan(world, SchedulingPolicy()).diagnoses[0].sentence == found.sentence


def test_two_jobs_that_want_the_same_for_different_reasons_are_told_their_own() -> None:
    ruled = Requirements(trust=TrustClass.CONFIDENTIAL, origins={"trust": RULED})
    plain = Requirements(trust=TrustClass.CONFIDENTIAL)
    jobs = (a_job("1", requirements=ruled), a_job("2", requirements=plain))
    made = plan(a_snapshot(jobs=jobs, runners=(a_runner(),)), SchedulingPolicy())
    first, second = (it.sentence for it in made.diagnoses)
    assert "(policy 3: deploy jobs)" in first
    assert "(policy" not in second


@pytest.mark.requirement("ACC-025", "DEV-011", "ELG-038", "ELG-042")
def test_a_signing_job_never_goes_to_a_general_runner_whatever_its_labels() -> None:
    claims = Capabilities(
        platform=Platform.LINUX,
        labels={"trust": "signing_restricted"},
        trust=TrustClass.SIGNING_RESTRICTED,
    )
    job = a_job(requirements=Requirements(trust=TrustClass.SIGNING_RESTRICTED))
    for trust in set(TrustClass) - {TrustClass.SIGNING_RESTRICTED}:
        assert not is_eligible(job, a_runner(capabilities=claims, trust=trust))
    assert is_eligible(job, a_runner(capabilities=claims, trust=TrustClass.SIGNING_RESTRICTED))


@pytest.mark.requirement("ACC-022", "ACC-023")
def test_a_linux_runner_refuses_what_needs_a_mac_or_apples_tools() -> None:
    linux = a_runner(capabilities=Capabilities(platform=Platform.LINUX))
    mac = a_job(requirements=Requirements(platform=Platform.MACOS))
    (rejection,) = rejections(mac, linux)
    assert (rejection.code, rejection.permanent) == (RejectionCode.PLATFORM_MISMATCH, True)
    phone = Capabilities(platform=Platform.LINUX, labels={"apple": "true", "xcode": "18"})
    xcode = replace(mac, requirements=Requirements(platform=Platform.MACOS, labels={"xcode": "18"}))
    assert not is_eligible(xcode, a_runner(capabilities=phone))


@pytest.mark.requirement("RES-021")
def test_what_an_owner_waits_for_is_not_lent_bit_by_bit() -> None:
    busy = replace(a_runner(), pool=KEPT, reserved=amounts())
    large = replace(a_job("2", resources=amounts(cpu=4_000)), project_id="prj_mobile")
    made = plan(a_snapshot((a_job("1"), large), (busy,)), SchedulingPolicy())
    assert made.decisions == ()
