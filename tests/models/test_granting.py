"""Every way in which two schedulers, two runners and two jobs may get into each other's way.

The model calls the product's own decisions; each of them that is taken away or made wrong is
refuted by a short trace.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from forgeyard.scheduler.grant import JobStanding
from forgeyard.store.amounts import DIMENSIONS
from tests.models.granting import Granting, Rules, State, product
from tests.models.rows import Row
from tests.models.search import Outcome, explore_to_ends

BY_AGENTS = ("accept", "reject", "renew", "succeeded", "failed", "crashes")
Mutant = Callable[[Rules], Rules]


def search(rules: Rules, *, jobs: int = 2, said: str = "the product") -> tuple[Outcome[State], str]:
    """Visit every state; tell what is wrong with the last one of a trace."""
    model = Granting(rules)
    outcome = explore_to_ends(
        [model.start(jobs)],
        model.after,
        lambda state: bool(model.wrong(state)),
        is_end=model.is_end,
        # Nobody may have to wait for an agent, who may be dead; nor does a crash help anybody.
        is_sure=lambda what: not what.endswith(BY_AGENTS) and "crashes" not in what,
    )
    wrong = ""
    if outcome.trace is not None:
        wrong = model.wrong(outcome.trace[-1][1]) or "nothing that is sure to happen leads on"
    print(f"\n{said}: {outcome.told()}{wrong and ': '}{wrong}")
    return outcome, wrong


@pytest.mark.requirement(
    "INV-003", "INV-004", "INV-005", "INV-010", "LSE-005", "LSE-006", "TST-004"
)
def test_no_order_of_events_breaks_a_lease_or_strands_a_job() -> None:
    outcome, wrong = search(product())
    assert not wrong
    assert outcome.states > 10_000


def no_fence(rules: Rules) -> Rules:
    return replace(rules, staleness=lambda *_: None)


def a_fence_that_ignores_the_epoch(rules: Rules) -> Rules:
    def blind(lease: Row, holder: Any, now: int, *states: Any) -> str | None:
        return rules.staleness({**lease, "epoch": holder.epoch}, holder, now, *states)

    return replace(rules, staleness=blind)


def a_sweep_that_does_not_look_again(rules: Rules) -> Rules:
    return replace(rules, looks_again=False)


def the_clock_of_a_process(rules: Rules) -> Rules:
    return replace(rules, longest_skew=2)


def no_second_look_at_jobs(rules: Rules) -> Rules:
    return replace(rules, job_standing=lambda _: JobStanding.ELIGIBLE)


def no_second_look_at_runners(rules: Rules) -> Rules:
    empty = {f"reserved_{name}": 0 for name in DIMENSIONS}
    return replace(
        rules, runner_standing=lambda row, **named: rules.runner_standing({**row, **empty}, **named)
    )


def an_epoch_that_is_not_raised(rules: Rules) -> Rules:
    return replace(rules, next_epoch=lambda one: one.job["epoch"] or 1)


def success_that_is_not_final(rules: Rules) -> Rules:
    return replace(rules, ends_on_success=False)


@pytest.mark.parametrize(
    ("mutant", "wrong"),
    [
        (no_fence, "LeaseState may not go from offered to released"),
        (a_fence_that_ignores_the_epoch, "a call of an earlier grant takes effect"),
        (a_sweep_that_does_not_look_again, "AttemptState may not go from lost to lost"),
        (the_clock_of_a_process, "a lease is taken away before its time"),
        (no_second_look_at_jobs, "JobState may not go from leased to leased"),
        (no_second_look_at_runners, "I1: a runner holds more than it has"),
        (an_epoch_that_is_not_raised, "the epochs of a job do not grow"),
        (success_that_is_not_final, "I3: a job has two accepted results"),
    ],
)
def test_a_decision_that_is_wrong_is_refuted_by_a_short_trace(mutant: Mutant, wrong: str) -> None:
    outcome, found = search(mutant(product()), said=mutant.__name__)
    assert found == wrong
    assert outcome.trace is not None
    assert len(outcome.trace) <= 10


def test_an_attempt_that_nobody_decides_strands_its_job() -> None:
    rules = replace(product(), is_undecided=lambda *_: False)
    outcome, found = search(rules, jobs=1, said="an attempt that nobody decides")
    assert found == "nothing that is sure to happen leads on"
    assert outcome.trace is not None
    assert len(outcome.trace) <= 4
