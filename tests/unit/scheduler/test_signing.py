"""A trust class is a hard requirement: no score ever gets a runner a job that is not for it."""

import pytest

from forgeyard.model.capability import TrustClass
from forgeyard.model.policy import SchedulingPolicy, ScoreWeights
from forgeyard.scheduler.place import plan
from tests.scheduling import a_job_that_requires, a_runner, a_snapshot, amounts

RESTRICTED = (TrustClass.SIGNING_RESTRICTED, TrustClass.CONFIDENTIAL)
GENERAL = (TrustClass.UNTRUSTED_GENERAL, TrustClass.TRUSTED_INTERNAL)


@pytest.mark.requirement("DEV-008", "DEV-009", "DEV-010", "ACC-025")
@pytest.mark.parametrize("trust", RESTRICTED)
@pytest.mark.parametrize("headroom", [0, 1_000])
def test_no_general_runner_scores_its_way_into_a_restricted_job(
    trust: TrustClass, headroom: int
) -> None:
    policy = SchedulingPolicy(weights=ScoreWeights(headroom=headroom, load=1_000))
    huge = amounts(cpu=900_000, memory_gib=9_000, disk_gib=9_000, slots=900)
    general = [a_runner(f"big-{kind}", trust=kind, total=huge) for kind in GENERAL]
    other = [a_runner(f"other-{kind}", trust=kind) for kind in RESTRICTED if kind is not trust]
    job = a_job_that_requires(trust=trust)
    alone = plan(a_snapshot([job], [*general, *other]), policy)
    assert (alone.decisions, alone.diagnoses[0].code) == ((), "TRUST_MISMATCH")
    full = a_runner("rightful", trust=trust, reserved=amounts(cpu=3_000, slots=3))
    (decision,) = plan(a_snapshot([job], [*general, *other, full]), policy).decisions
    assert [runner_id for runner_id, _ in decision.candidates] == ["rnr_rightful"]


@pytest.mark.requirement("DEV-008", "DEV-011")
@pytest.mark.parametrize("trust", RESTRICTED)
def test_a_restricted_runner_serves_nobody_who_does_not_ask_for_it(trust: TrustClass) -> None:
    made = plan(a_snapshot([a_job_that_requires()], [a_runner(trust=trust)]), SchedulingPolicy())
    assert made.decisions == ()
