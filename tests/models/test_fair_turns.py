"""No tenant waits for ever: every way in which two tenants may ask is tried.

A step serves one job. Each tenant has a next job, small or large, or none for a while; after it is
served, any other may follow. Whose turn it is, and what it costs, is asked of the product's own
functions, and each mutant of those is refuted by a trace.
"""

from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from functools import cache
from itertools import product
from typing import NamedTuple

import pytest

from forgeyard.model.policy import SchedulingPolicy
from forgeyard.scheduler.queue import FairQueue
from forgeyard.scheduler.scopes import PRECISION, ROOT, SchedulingScope, Tags
from forgeyard.scheduler.snapshot import SchedulingJob
from tests.models.search import explore
from tests.scheduling import NOW, a_job, a_snapshot, amounts

TENANTS = ("a", "b")
SMALL, LARGE = 1_000, 2_000
"""What a job counts for, in thousandths of a core."""
LONGEST_IDLE = 6
"""Jobs that the other may have before a tenant that had nothing to do comes back."""
POLICY = SchedulingPolicy()
Weights = tuple[int, int]


class Claim(NamedTuple):
    """Where a tenant stands."""

    finish: int
    """Its tag, counted from the clock."""
    wants: int
    """What its next job counts for; 0 when it has none."""
    watched: int = 0
    """What the other was given since this one has had a job at the head; or since it has none."""


State = tuple[Claim, Claim]
Turn = Callable[[State, Weights], int]
Charge = Callable[[State, Weights, int], tuple[int, int]]


@cache
def real_turn(state: State, weights: Weights) -> int:
    """Ask the product whose turn it is."""
    jobs = [
        _job(tenant, claim.wants)
        for tenant, claim in zip(TENANTS, state, strict=True)
        if claim.wants
    ]
    snapshot = a_snapshot(jobs, [], scopes=_scopes(state, weights))
    return TENANTS.index(next(iter(FairQueue(snapshot, POLICY))).tenant_id)


@cache
def real_charge(state: State, weights: Weights, served: int) -> tuple[int, int]:
    """Let the product count a service; tags stay counted from the clock, which nobody precedes."""
    tags = Tags(_scopes(state, weights))
    tags.charge(_job(TENANTS[served], 0).scopes, state[served].wants)
    first, second = (max(0, tags.finish[tenant] - tags.clock[ROOT]) for tenant in TENANTS)
    return first, second


def idleness_earns_credit(state: State, weights: Weights, served: int) -> tuple[int, int]:
    """Count a service from where the last one ended, however long ago."""
    finish = [claim.finish for claim in state]
    finish[served] += state[served].wants * PRECISION // weights[served]
    return finish[0] - min(finish), finish[1] - min(finish)


def weights_are_ignored(state: State, weights: Weights, served: int) -> tuple[int, int]:
    """Count a service as if all had one weight."""
    return real_charge(state, (1, 1), served)


def first_come_first_served(state: State, weights: Weights) -> int:
    """Serve the flood of the first tenant, which was there before all others, to its end."""
    return 0 if state[0].wants else 1


def by_size_alone(state: State, weights: Weights) -> int:
    """Serve whoever wants least."""
    return min((claim.wants, place) for place, claim in enumerate(state) if claim.wants)[1]


def _job(tenant: str, wants: int) -> SchedulingJob:
    return a_job(
        tenant,
        tenant_id=tenant,
        organization_id=f"org_{tenant}",
        project_id=f"prj_{tenant}",
        queue_id=f"que_{tenant}",
        resources=amounts(cpu=wants),
        eligible_at=NOW,
    )


def _scopes(state: State, weights: Weights) -> Mapping[str, SchedulingScope]:
    tenants = {
        tenant: SchedulingScope(
            scope_id=tenant, name=tenant, kind="tenant", weight=weight, finish_tag=claim.finish
        )
        for tenant, claim, weight in zip(TENANTS, state, weights, strict=True)
    }
    return {ROOT: SchedulingScope(scope_id=ROOT, name="everything", kind="root"), **tenants}


def _bound(weights: Weights, watched: int) -> Fraction:
    """What the other may be given meanwhile: its share of one job of each."""
    own, other = weights[watched], weights[1 - watched]
    return other * (Fraction(LARGE, own) + Fraction(LARGE, other))


def _after(
    state: State, weights: Weights, turn: Turn, charge: Charge
) -> Iterator[tuple[str, State]]:
    """Serve whose turn it is; then any job or none may follow, and an idle tenant may come back."""
    served = turn(state, weights)
    amount = state[served].wants
    tags = charge(state, weights, served)
    waiting = state[1 - served]
    idle = not waiting.wants
    given = waiting.watched + amount
    returns = [SMALL, LARGE, *([0] if given <= LONGEST_IDLE * SMALL else [])]
    for follows, other in product((SMALL, LARGE, 0), returns if idle else [waiting.wants]):
        after = [Claim(tags[served], follows), Claim(tags[1 - served], other, given)]
        if idle and other:
            after[1] = after[1]._replace(watched=0)
        if any(claim.wants for claim in after):
            first, second = after if served == 0 else reversed(after)
            yield f"{TENANTS[served]} gets {amount}", (first, second)


def _search(weights: Weights, turn: Turn, charge: Charge) -> tuple[int, int | None]:
    starts = [
        (Claim(0, first), Claim(0, second))
        for first, second in product((SMALL, LARGE, 0), repeat=2)
        if first or second
    ]
    outcome = explore(
        starts,
        lambda state: _after(state, weights, turn, charge),
        lambda state: any(
            claim.wants and claim.watched > _bound(weights, place)
            for place, claim in enumerate(state)
        ),
    )
    print(f"\nweights {weights}, {turn.__name__}, {charge.__name__}: {outcome.told()}")
    return outcome.states, outcome.trace and len(outcome.trace)


@pytest.mark.requirement(
    "FAR-001",
    "FAR-003",
    "FAR-004",
    "FAR-025",
    "ACC-017",
    "PRI-015",
    "PRI-016",
    "INV-034",
    "PHA-006",
    "GAT-005",
)
@pytest.mark.parametrize("weights", [(1, 1), (1, 2), (4, 1), (2, 5)])
def test_a_tenant_with_work_is_kept_waiting_for_its_rival_s_share_and_no_longer(
    weights: Weights,
) -> None:
    states, trace = _search(weights, real_turn, real_charge)
    assert trace is None
    assert states > 100


@pytest.mark.parametrize(
    ("turn", "charge"),
    [
        (real_turn, idleness_earns_credit),
        (real_turn, weights_are_ignored),
        (first_come_first_served, real_charge),
        (by_size_alone, real_charge),
    ],
)
def test_a_share_that_is_reckoned_wrongly_is_refuted(turn: Turn, charge: Charge) -> None:
    _, trace = _search((1, 5), turn, charge)
    assert trace is not None
    assert trace <= 20
