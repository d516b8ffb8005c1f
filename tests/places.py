"""Random pools, regions and ages of reports, and a judge written apart from the product's."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from forgeyard.model.capability import TrustClass
from forgeyard.model.location import Location
from forgeyard.model.units import Millis
from forgeyard.model.wishes import Purpose
from forgeyard.scheduler.snapshot import SchedulingJob, SchedulingRunner
from forgeyard.scheduler.standing import Freshness, SchedulingPool, Sharing

POOLS = ("default", "linux", "ios")
REGIONS = ("eu", "us")
SHORT, LONG = Millis(600_000), Millis(7_200_000)


def some_pool(rng: Random, pool_id: str, owners: Sequence[str]) -> SchedulingPool:
    """Make a pool; most of them are nothing special."""
    name = rng.choice(POOLS)
    if rng.random() < 0.6:
        return SchedulingPool(pool_id=pool_id, name=name)
    owner = rng.choice(owners) if rng.random() < 0.75 else None
    return SchedulingPool(
        pool_id=pool_id,
        name=name,
        owner_id=owner,
        owner=f"team {owner}",
        sharing=Sharing.SHARED if owner is None else Sharing.RESERVED,
        spillover=rng.random() < 0.9,
        trust=rng.choice(list(TrustClass)) if rng.random() < 0.1 else None,
        draining=rng.random() < 0.07,
        closes_in=rng.choice((Millis(0), SHORT, LONG)) if rng.random() < 0.15 else None,
        reason="new racks",
    )


def some_kept_pool(rng: Random, owners: Sequence[str]) -> SchedulingPool:
    """Make a pool that lends what its owner leaves idle, who often has no jobs at all."""
    owner = rng.choice(("stranger", rng.choice(owners)))
    return SchedulingPool(
        pool_id="pol_default",
        name="default",
        owner_id=owner,
        owner=f"team {owner}",
        sharing=Sharing.RESERVED,
        spillover=True,
    )


def placed(rng: Random, runner: SchedulingRunner, pool: SchedulingPool) -> SchedulingRunner:
    """Put a runner into a pool and a region, with a report of some age."""
    return replace(
        runner,
        pool=pool,
        location=Location(region=rng.choice((*REGIONS, None))),
        freshness=rng.choice(list(Freshness)) if rng.random() < 0.08 else Freshness.FRESH,
    )


def placeable(rng: Random, job: SchedulingJob) -> SchedulingJob:
    """Give a job a purpose, a timeout, and now and then the wish for a pool or a region."""
    wanted = job.requirements
    if rng.random() < 0.05:
        wanted = replace(wanted, pools=tuple(rng.sample(POOLS, rng.randint(1, 2))))
    if rng.random() < 0.05:
        wanted = replace(wanted, regions=tuple(rng.sample(REGIONS, rng.randint(1, 2))))
    timeout = rng.choice((SHORT, SHORT, LONG, Millis(LONG * 2)))
    purpose = rng.choice(list(Purpose)) if rng.random() < 0.3 else Purpose.BUILD
    wishes = replace(job.wishes, purpose=purpose)
    return replace(job, requirements=wanted, wishes=wishes, lasts=timeout)


def naive_passing(job: SchedulingJob, runner: SchedulingRunner) -> bool:
    """Tell whether waiting could help where the runner stands."""
    pool = runner.pool
    careful = job.wishes.purpose in ("deploy", "signing") or job.requirements.trust in (
        "signing_restricted",
        "confidential",
    )
    closing = pool.closes_in is not None and pool.closes_in < max(job.lasts, 1)
    old = runner.freshness == "stale" or (careful and runner.freshness == "aged")
    return pool.draining or closing or old or (_foreign(job, pool) and pool.spillover)


def naive_lasting(job: SchedulingJob, runner: SchedulingRunner) -> bool:
    """Tell whether no waiting helps where the runner stands."""
    pool, wanted = runner.pool, job.requirements
    return (
        (pool.trust is not None and pool.trust != runner.trust)
        or (_foreign(job, pool) and not pool.spillover)
        or (len(wanted.pools) > 0 and pool.name not in wanted.pools)
        or (len(wanted.regions) > 0 and runner.location.region not in wanted.regions)
    )


def _foreign(job: SchedulingJob, pool: SchedulingPool) -> bool:
    whose = {job.tenant_id, job.organization_id, job.project_id, job.queue_id}
    return pool.sharing == "reserved" and pool.owner_id not in whose
