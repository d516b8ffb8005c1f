"""How an attempt ended, in the words of the protocol."""

import signal
from dataclasses import dataclass, replace

from forgeyard.agent.lease import StopReason
from forgeyard.agent.steps import StepRun
from forgeyard.model.job import FailureClass
from forgeyard.model.protocol import Outcome, TestCounts
from forgeyard.model.units import Bytes, Rounding, bytes_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """What to report; `message` says to a reader what went wrong."""

    outcome: Outcome
    failure_class: FailureClass | None = None
    exit_code: int | None = None
    message: str = ""


def failed(blame: FailureClass, message: str, *, exit_code: int | None = None) -> Ending:
    """Describe a failure."""
    return Ending(outcome=Outcome.FAILED, failure_class=blame, exit_code=exit_code, message=message)


def interrupted(reason: StopReason, *, phase: str) -> Ending:
    """Describe an end that was forced while the attempt was still ours."""
    if reason is StopReason.TIMED_OUT:
        return Ending(
            outcome=Outcome.TIMED_OUT,
            failure_class=FailureClass.TIMEOUT,
            message=f"{phase} took longer than allowed",
        )
    if reason is StopReason.CANCELLED:
        return Ending(
            outcome=Outcome.CANCELLED,
            failure_class=FailureClass.CANCELLED,
            message=f"cancelled during {phase}",
        )
    # Nobody asked for the job to end, only for its runner: it may be tried again elsewhere.
    return failed(FailureClass.INFRASTRUCTURE, f"the agent was stopped during {phase}")


def of_step(run: StepRun, *, shell: str) -> Ending | None:
    """Describe a step that ended the attempt; None lets the next one begin."""
    code, name = run.result.exit_code, run.result.name
    if code is None:
        return failed(FailureClass.SANDBOX_SETUP, run.problem)
    if code == 0:
        return None
    if run.memory:
        limit = bytes_text(Bytes(run.memory), rounding=Rounding.REQUEST)
        message = f"step {name!r} ({shell}) was out of memory: more than {limit} is not allowed"
        return failed(FailureClass.OUT_OF_MEMORY, message, exit_code=code)
    how = f"exited with code {code}" if code > 0 else f"was killed by signal {-code}"
    return failed(FailureClass.USER_COMMAND, f"step {name!r} ({shell}) {how}", exit_code=code)


def on_a_leaving_machine(end: Ending | None, *, checkpoint: bool) -> Ending | None:
    """Blame a machine that is being taken away, not the job that it took along (SPT-008).

    Whoever saves its work has ended because of that, whatever its exit code; of others only those
    that were killed, as everything is on a machine that goes down.
    """
    if end is None or end.exit_code is None:
        return end
    if not checkpoint and end.exit_code not in _KILLED:
        return end
    message = f"its machine is being taken away by its provider: {end.message}"
    return replace(end, failure_class=FailureClass.INFRASTRUCTURE, message=message)


_KILLED = frozenset(
    code for number in (signal.SIGTERM, signal.SIGKILL) for code in (-number, 128 + number)
)
"""Exit codes of who was ended from outside, as the kernel and as a shell tell them."""


def judged_by_tests(end: Ending | None, tests: TestCounts | None) -> Ending | None:
    """Blame the tests for a step that failed while they did; they never end it alone."""
    if end is None or end.failure_class is not FailureClass.USER_COMMAND:
        return end
    if tests is None or tests.failed == 0:
        return end
    return replace(end, failure_class=FailureClass.TEST_FAILURE)
