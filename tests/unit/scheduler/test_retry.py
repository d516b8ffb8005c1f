from dataclasses import replace

import pytest

from forgeyard.model.job import AUTOMATIC_RETRY, FailureClass, RetryPolicy
from forgeyard.model.units import LARGEST, Millis
from forgeyard.scheduler.retry import GiveUp, Retry, decide

POLICY = RetryPolicy(max_attempts=3)


@pytest.mark.parametrize("failure", AUTOMATIC_RETRY)
def test_failures_of_the_infrastructure_are_tried_again(failure: FailureClass) -> None:
    assert decide(POLICY, failure, 1, cancelled=False) == Retry(delay=Millis(0))


@pytest.mark.parametrize(
    "failure", sorted(set(FailureClass) - {*AUTOMATIC_RETRY, FailureClass.PREEMPTED})
)
def test_failures_of_the_work_itself_are_not(failure: FailureClass) -> None:
    assert decide(POLICY, failure, 1, cancelled=False) == GiveUp(
        reason=f"{failure} is not a reason to try again"
    )


def test_the_author_may_ask_for_more() -> None:
    policy = RetryPolicy(on=(FailureClass.USER_COMMAND,))
    assert isinstance(decide(policy, FailureClass.USER_COMMAND, 1, cancelled=False), Retry)


def test_the_budget_counts_charged_attempts() -> None:
    lost = FailureClass.RUNNER_LOST
    assert isinstance(decide(POLICY, lost, 2, cancelled=False), Retry)
    assert decide(POLICY, lost, 3, cancelled=False) == GiveUp(reason="3 of 3 attempts are used up")
    assert isinstance(decide(POLICY, lost, 4, cancelled=False), GiveUp)


def test_a_cancelled_job_is_never_tried_again() -> None:
    answer = decide(POLICY, FailureClass.RUNNER_LOST, 1, cancelled=True)
    assert answer == GiveUp(reason="the job was cancelled")


def test_the_delay_doubles_up_to_its_limit() -> None:
    policy = RetryPolicy(max_attempts=100, delay=Millis(1_000), max_delay=Millis(5_000))
    answers = [
        decide(policy, FailureClass.INFRASTRUCTURE, charged, cancelled=False)
        for charged in range(6)
    ]
    delays = [answer.delay for answer in answers if isinstance(answer, Retry)]
    assert delays == [1_000, 1_000, 2_000, 4_000, 5_000, 5_000]


def test_a_thousandth_attempt_does_not_overflow() -> None:
    policy = RetryPolicy(max_attempts=10_000, delay=Millis(1), max_delay=Millis(LARGEST))
    answer = decide(policy, FailureClass.INFRASTRUCTURE, 1_000, cancelled=False)
    assert answer == Retry(delay=Millis(LARGEST))


@pytest.mark.requirement("PRE-005")
def test_a_job_that_we_stopped_ourselves_is_tried_again_whatever_its_policy() -> None:
    never = replace(POLICY, max_attempts=1, on=())
    assert decide(never, FailureClass.PREEMPTED, 9, cancelled=False) == Retry(delay=Millis(0))
    gone = decide(never, FailureClass.PREEMPTED, 0, cancelled=True)
    assert gone == GiveUp(reason="the job was cancelled")
