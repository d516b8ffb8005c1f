"""Three schedulers and everybody else on one PostgreSQL, and mutants that this must notice."""

import time
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, Phase, settings
from hypothesis.errors import Flaky
from hypothesis.stateful import run_state_machine_as_test

from forgeyard.errors import AccountingCorrupt, IllegalTransition
from forgeyard.scheduler.gates import Gates
from forgeyard.store import batch, commit, fence, grants, locked
from tests.chaos.contention import VACUOUS, Crowd, Restless, Seen
from tests.conftest import empty

pytestmark = pytest.mark.integration
RUNS, STEPS = 25, 40
"""In each round of `make chaos`; draws come from its seed."""
FEW, SHORT = 20, 10
"""In `make test`, which has one round and draws the same each time."""
NOTICED = (
    *(AssertionError, IllegalTransition, AccountingCorrupt, ValueError),
    *(sa.exc.IntegrityError, Flaky),
)
"""How a broken rule shows: in a check of the crowd, or in a guard of the product's own.

Threads do not meet again as they did, so Hypothesis often says of a failure that it is flaky.
"""
Record = Callable[[str, object], None]


def let_loose(engine: sa.Engine, crowd: type[Crowd], *, runs: int, steps: int = SHORT) -> Seen:
    """Run the crowd so many times; what it draws for short runs is the same each time."""
    world = {"engine": engine, "empty": staticmethod(lambda: empty(engine)), "seen": Seen()}
    here: Any = type("Here", (crowd,), world)
    chosen = settings(
        max_examples=runs,
        stateful_step_count=steps,
        deadline=None,
        database=None,
        derandomize=steps == SHORT,
        # Threads never meet twice in the same way: a failure is told as it was, not shrunk.
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        print_blob=False,
        report_multiple_bugs=False,
    )
    run_state_machine_as_test(here, settings=chosen)
    seen: Seen = here.seen
    return seen


@pytest.mark.requirement(
    "LSE-002", "LSE-005", "LSE-006", "RCN-025", "RCN-027", "RCN-028", "GAT-003"
)
def test_three_schedulers_and_everybody_else_keep_every_rule(
    postgresql_engine: sa.Engine, pytestconfig: pytest.Config, record_property: Record
) -> None:
    """`make chaos` runs it far longer; F11, F16, F26."""
    rounds = pytestconfig.getoption("--chaos-rounds")
    runs, steps, crowd = (RUNS * rounds, STEPS, Restless) if rounds > 1 else (FEW, SHORT, Crowd)
    seen = let_loose(postgresql_engine, crowd, runs=runs, steps=steps)
    record_property(
        f"{runs} runs of {steps} steps",
        {str(what): count for what, count in sorted(seen.counts.items())},
    )
    # Few short runs seldom live to see a renewal in time.
    some = [name for name in VACUOUS if not name.startswith("renewal")]
    least = VACUOUS if steps == STEPS else dict.fromkeys(some, 1)
    lacking = {name: seen.counts[name] for name in least if seen.counts[name] < least[name]}
    assert not lacking, f"{lacking} happened too seldom to prove anything: {seen.counts}"


def without_runner_locks(patch: pytest.MonkeyPatch) -> None:
    """Read the runners of a commit without locking them, a moment before writing grants.

    Commits still wait for each other at the root; whoever registers or drains is let between.
    """
    write_grants = grants.write

    def later(*arguments: Any, **named: Any) -> None:
        time.sleep(0.05)
        write_grants(*arguments, **named)

    def unlocked(dialect: sa.Dialect) -> batch.Batch:
        jobs, runners = locked._job_query(dialect), locked._runner_query(dialect)
        return batch.questions_of(dialect, {"jobs": jobs, "runners": runners})

    patch.setattr(locked, "_lock", unlocked)
    patch.setattr(grants, "write", later)


def without_fence(patch: pytest.MonkeyPatch) -> None:
    """Believe whoever names a lease, whatever its epoch, state and time."""
    patch.setattr(fence, "staleness", lambda *_arguments: None)


def without_keys(patch: pytest.MonkeyPatch) -> None:
    """Commit without looking again who holds which key."""
    patch.setattr(commit, "Gates", lambda scoped, _held: Gates(scoped, {}))


def without_sessions(patch: pytest.MonkeyPatch) -> None:
    """Let a new session leave the old one's leases alone."""
    patch.setattr("forgeyard.store.runners.revoke_all", lambda *_arguments, **_named: None)


@pytest.mark.parametrize(
    "mutate", [without_runner_locks, without_fence, without_keys, without_sessions]
)
def test_the_crowd_notices_what_is_taken_away(
    postgresql_engine: sa.Engine,
    monkeypatch: pytest.MonkeyPatch,
    mutate: Callable[[pytest.MonkeyPatch], None],
    record_property: Record,
) -> None:
    mutate(monkeypatch)
    with pytest.raises(NOTICED) as caught:
        let_loose(postgresql_engine, Restless, runs=RUNS)
    record_property(mutate.__name__, str(caught.value).splitlines()[0][:120])
