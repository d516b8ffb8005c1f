"""S4: an untrusted job never lands where signing is done, whatever a machine says about itself."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from unittest.mock import patch

import pytest

from forgeyard.fleet import admission
from forgeyard.model.capability import TrustClass
from forgeyard.model.enrolment import Grant
from forgeyard.model.policy import SchedulingPolicy
from forgeyard.model.protocol import Report
from forgeyard.model.runner import RunnerState
from forgeyard.scheduler import columns, eligibility, standing
from forgeyard.scheduler.place import plan
from forgeyard.scheduler.snapshot import SchedulingJob, SchedulingRunner, Snapshot
from forgeyard.scheduler.standing import SchedulingPool
from tests.scheduling import a_job, a_runner, a_snapshot, amounts
from tests.spoofing import (
    MAY,
    VAULT,
    Sort,
    report_of,
    some_claim,
    some_grant,
    some_job,
    without_trusted,
    wrongs,
)
from tests.worlds import demand_hits

FLEET, WORLDS = 10, 1_000
"""Ten thousand sets of labels."""
POOLS = {
    "": SchedulingPool(),
    VAULT: SchedulingPool(pool_id="pol_vault", name=VAULT, trust=TrustClass.SIGNING_RESTRICTED),
}
POLICY = SchedulingPolicy()


@dataclass(frozen=True, kw_only=True)
class World:
    """A snapshot, and what was granted to whom and asked by whom."""

    snapshot: Snapshot
    grants: dict[str, Grant]
    sorts: dict[str, Sort]


def admitted(rng: Random, name: str, grant: Grant, hits: Counter[str]) -> SchedulingRunner:
    """Let a machine come in by its claim and then by a report that claims it all again."""
    claim = some_claim(rng, name)
    hits["label sets"] += 1
    if rng.random() < 0.5:
        claim = without_trusted(claim)
    verdict = admission.judge(claim, grant, expected_name=name, agent_versions="", now=0)
    turned_away = "which its enrolment does not grant" in verdict.reason
    hits["turned away"] += turned_away
    later = admission.granted(report_of(some_claim(rng, name)), grant)
    hits["claimed another trust"] += claim.capabilities.trust is not grant.trust
    return a_runner(
        name,
        state=RunnerState.UNADMITTED if turned_away else RunnerState.ONLINE,
        trust=admission.granted(report_of(claim), grant).capabilities.trust,
        capabilities=later.capabilities,
        capability_digest=f"sha256:{name}",
        pool=POOLS[grant.pool],
    )


def a_world(seed: int, hits: Counter[str]) -> World:
    """Make a fleet that lies, and jobs of every sort, more than it can take."""
    rng = Random(seed)
    grants = {f"rnr_{place}": some_grant(rng) for place in range(FLEET)}
    runners = [admitted(rng, f"{place}", grants[f"rnr_{place}"], hits) for place in range(FLEET)]
    sorts = {f"job_{place}": rng.choice(list(Sort)) for place in range(16)}
    return World(
        snapshot=a_snapshot([waiting(rng, *each) for each in sorts.items()], runners),
        grants=grants,
        sorts=sorts,
    )


def waiting(rng: Random, job_id: str, sort: Sort) -> SchedulingJob:
    """Let a job of a sort wait."""
    spec = some_job(rng, job_id.removeprefix("job_"), sort)
    small = amounts(cpu=500)
    return a_job(spec.name, requirements=spec.requires, wishes=spec.wishes, resources=small)


def judge(world: World, hits: Counter[str]) -> Iterator[str]:
    """Plan, and say what is wrong with any candidate of any job."""
    fleet = {one.runner_id: one for one in world.snapshot.runners}
    queue = {one.job_id: one for one in world.snapshot.jobs}
    for decision in plan(world.snapshot, POLICY).decisions:
        sort, job = world.sorts[decision.job_id], queue[decision.job_id]
        hits[f"{sort} placed"] += 1
        hits["zoned placed"] += bool(job.requirements.labels)
        for runner_id, _ in decision.candidates:
            if fleet[runner_id].state is not RunnerState.ONLINE:
                yield "a runner that was turned away"
            yield from wrongs(
                sort, job.requirements, world.grants[runner_id], world.grants[runner_id].pool
            )
    idle = [world.grants[one.runner_id] for one in fleet.values()]
    hits["a runner for signing was there"] += any(one.trust in MAY[Sort.SIGNING] for one in idle)


def found(worlds: int, hits: Counter[str]) -> Counter[str]:
    """Say what is wrong in so many worlds."""
    return Counter(wrong for seed in range(worlds) for wrong in judge(a_world(seed, hits), hits))


@pytest.mark.requirement("DEV-008", "DEV-012", "INV-055")
def test_no_label_brings_an_untrusted_job_to_a_runner_for_signing(
    record_property: Callable[[str, object], None],
) -> None:
    """S4: ten thousand sets of labels, through admission, report and planner."""
    hits: Counter[str] = Counter()
    assert found(WORLDS, hits) == {}
    record_property("S4, planned", dict(hits))
    assert hits["label sets"] >= 10_000
    demand_hits(hits, *(f"{sort} placed" for sort in Sort), "zoned placed", "turned away")
    demand_hits(hits, "claimed another trust", "a runner for signing was there")


@contextmanager
def trust_from_reports() -> Iterator[None]:
    """Believe what a machine says about its own trust."""

    def believed(report: Report, _grant: Grant) -> Report:
        return report

    with patch.object(admission, "granted", believed):
        yield


@contextmanager
def any_trust_will_do() -> Iterator[None]:
    """Let the planner look at no trust class."""
    with patch.object(eligibility, "is_trusted", lambda _wanted, _offered: True):
        yield


@contextmanager
def pools_of_any_trust() -> Iterator[None]:
    """Let runners work in a pool that they are not trusted for."""
    genuine = standing.lasting

    def lax(job: SchedulingJob, runner: SchedulingRunner) -> Iterator[standing.Hindrance]:
        return (it for it in genuine(job, runner) if it.code != "pool_trust")

    with patch.object(standing, "lasting", lax), patch.object(columns, "lasting", lax):
        yield


@contextmanager
def everybody_is_let_in() -> Iterator[None]:
    """Turn nobody away who offers what was not granted, and keep what is offered."""
    with patch.object(admission, "TRUSTED", "no such beginning"):
        yield


MUTANTS = {
    "trust from reports": (trust_from_reports, "a proposal job on a runner for signing_restricted"),
    "any trust": (any_trust_will_do, "a proposal job on a runner for signing_restricted"),
    "any pool": (pools_of_any_trust, "a runner for trusted_internal works in the pool for signing"),
    "all let in": (everybody_is_let_in, "trusted.zone was never granted"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_the_judge_sees_a_product_without_this_safeguard(
    name: str, record_property: Callable[[str, object], None]
) -> None:
    """S4: each of the four safeguards, taken away by itself, is missed at once."""
    mutant, wrong = MUTANTS[name]
    hits: Counter[str] = Counter()
    with mutant():
        seen = found(40, hits)
    record_property(f"S4 without {name}", dict(seen))
    assert seen[wrong] > 0
