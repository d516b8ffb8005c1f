"""Whether a rollout goes on, is over, or is taken back."""

from dataclasses import replace

import pytest

from forgeyard.fleet.rollout import RolloutFacts, judge
from forgeyard.model.fleet import Rollout
from forgeyard.model.image import ImageStanding, RolloutState
from tests.scheduling import MINUTE, NOW

S = RolloutState
RULES = Rollout(canaries=2, soak=10 * MINUTE, failures=2)
CANARY = RolloutFacts(state=S.CANARY, image="img-2", well=2, well_since=NOW - MINUTE, others=5)
REPLACING = replace(CANARY, state=S.REPLACING)


def to(facts: RolloutFacts) -> RolloutState | None:
    return judge(facts, RULES, now=NOW).to


@pytest.mark.requirement("IMG-009")
@pytest.mark.parametrize(
    ("facts", "after"),
    [
        (CANARY, None),
        (replace(CANARY, jobs=1), S.REPLACING),
        (replace(CANARY, well_since=NOW - 10 * MINUTE), S.REPLACING),
        (replace(CANARY, well=1, jobs=1), None),
        (replace(CANARY, jobs=1, is_paused=True), None),
        (replace(CANARY, gone_wrong=1), None),
        (replace(CANARY, gone_wrong=2), S.ROLLED_BACK),
        (replace(CANARY, gone_wrong=2, is_paused=True), S.ROLLED_BACK),
        (replace(CANARY, standing=ImageStanding.BLOCKED), S.ROLLED_BACK),
        (replace(CANARY, fleet_ends=True), S.ROLLED_BACK),
        (REPLACING, None),
        (replace(REPLACING, others=0), S.DONE),
        (replace(REPLACING, others=0, is_paused=True), None),
        (replace(REPLACING, gone_wrong=2), None),
        (replace(REPLACING, gone_wrong=3), S.ROLLED_BACK),
        (replace(REPLACING, standing=ImageStanding.CONDEMNED), S.ROLLED_BACK),
    ],
)
def test_a_rollout_is_judged_by_what_its_machines_show(
    facts: RolloutFacts, after: RolloutState | None
) -> None:
    assert to(facts) is after


def test_a_canary_is_looked_at_again_when_it_will_have_proved_itself() -> None:
    nearly = replace(CANARY, well_since=NOW - 10 * MINUTE + 300)
    assert judge(nearly, RULES, now=NOW).wait == 300
