"""Whom the end of an attempt is blamed on."""

import pytest

from forgeyard.agent import ending
from forgeyard.agent.ending import Ending
from forgeyard.model.job import FailureClass
from forgeyard.model.protocol import Outcome

BY_USER = FailureClass.USER_COMMAND


def blamed(code: int, *, checkpoint: bool = False) -> FailureClass | None:
    """Tell who is to blame for a step that ended on a machine that is being taken away."""
    failed = ending.failed(BY_USER, "step 'test' failed", exit_code=code)
    judged = ending.on_a_leaving_machine(failed, checkpoint=checkpoint)
    assert judged is not None
    assert "step 'test' failed" in judged.message
    assert (judged.outcome, judged.exit_code) == (Outcome.FAILED, code)
    return judged.failure_class


@pytest.mark.requirement("SPT-008", "INV-062")
@pytest.mark.parametrize("code", [-15, -9, 143, 137])
def test_whoever_is_killed_on_a_machine_that_goes_has_not_failed_by_itself(code: int) -> None:
    assert blamed(code) is FailureClass.INFRASTRUCTURE


@pytest.mark.parametrize("code", [1, 2, 126, -11, 139])
def test_whoever_fails_by_itself_has_failed_wherever_that_was(code: int) -> None:
    assert blamed(code) is BY_USER


@pytest.mark.requirement("SPT-010")
@pytest.mark.parametrize("code", [1, 75, -15])
def test_whoever_saves_its_work_ends_because_of_its_machine(code: int) -> None:
    assert blamed(code, checkpoint=True) is FailureClass.INFRASTRUCTURE


def test_a_success_and_an_end_before_any_step_stay_what_they_are() -> None:
    assert ending.on_a_leaving_machine(None, checkpoint=True) is None
    early = Ending(outcome=Outcome.FAILED, failure_class=FailureClass.SANDBOX_SETUP)
    assert ending.on_a_leaving_machine(early, checkpoint=True) == early
