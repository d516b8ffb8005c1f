"""Where a runner stands: its pool, its region, the age of its report, and what that keeps from it.

Nothing here is what a machine can do. A pool may serve its owner alone, drain, or close for
maintenance; a report may be too old to be believed where harm could be done (ELG-029).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from forgeyard.model.capability import RESTRICTED_TRUST, Requirements, TrustClass
from forgeyard.model.location import Location
from forgeyard.model.policy import StalenessPolicy
from forgeyard.model.units import Millis
from forgeyard.model.wishes import CRITICAL_PURPOSES, Wishes


class Sharing(StrEnum):
    """Whom the runners of a pool serve (RES-022)."""

    SHARED = "shared"
    RESERVED = "reserved"


class Freshness(StrEnum):
    """How old a capability report is, by what policy allows."""

    FRESH = "fresh"
    AGED = "aged"
    """Too old for sensitive jobs."""
    STALE = "stale"
    """Too old for any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulingPool:
    """A pool as one cycle sees it (RUN-005)."""

    pool_id: str = "pol_default"
    name: str = "default"
    version: int = 1
    """Of its row: whatever changes it voids what was planned before."""
    owner_id: str | None = None
    """The scope whose jobs it serves, if it is reserved."""
    owner: str = ""
    """That scope in words: `project mobile`."""
    trust: TrustClass | None = None
    """What its runners must be trusted with; any other gets nothing there (DEV-013)."""
    sharing: Sharing = Sharing.SHARED
    spillover: bool = False
    """It is reserved, but lends what its owner has no use for (RES-023)."""
    draining: bool = False
    closes_in: Millis | None = None
    """How long until it closes for maintenance, if that is soon; 0 while it is closed."""
    reason: str = ""
    """Why it drains or closes."""


class HindranceCode(StrEnum):
    """What a runner's standing has against a job; `eligibility` prints it under the same name."""

    POOL_DRAINING = "pool_draining"
    POOL_MAINTENANCE = "pool_maintenance"
    POOL_KEPT = "pool_kept"
    """Its owner comes first; it lends what is left."""
    CAPABILITIES_STALE = "capabilities_stale"
    POOL_TRUST = "pool_trust"
    POOL_RESERVED = "pool_reserved"
    POOL_NOT_ALLOWED = "pool_not_allowed"
    REGION_MISMATCH = "region_mismatch"
    REGION_UNKNOWN = "region_unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hindrance:
    """One thing that a runner's standing has against a job, both sides in words."""

    code: HindranceCode
    wanted: str
    offered: str
    path: str = ""
    """Which entry of the requirements it is about."""


class Applicant(Protocol):
    """The job that would run there."""

    @property
    def scopes(self) -> tuple[str, ...]:
        """List the scopes that it belongs to."""
        ...

    @property
    def requirements(self) -> Requirements:
        """Tell what it must find."""
        ...

    @property
    def wishes(self) -> Wishes:
        """Tell what is its own."""
        ...

    @property
    def lasts(self) -> int:
        """Tell after how many milliseconds its attempt is over at the latest."""
        ...


class Standing(Protocol):
    """The runner, as far as this module looks at it."""

    @property
    def pool(self) -> SchedulingPool:
        """Tell its pool."""
        ...

    @property
    def trust(self) -> TrustClass:
        """Tell what it is trusted with."""
        ...

    @property
    def location(self) -> Location:
        """Tell where it is."""
        ...

    @property
    def freshness(self) -> Freshness:
        """Tell how old its report is."""
        ...


NOBODY: frozenset[str] = frozenset()


def fingerprint(capability_digest: str, pool_id: str, pool_version: int) -> str:
    """Name what a runner was judged by; another one voids the judgement."""
    return f"{capability_digest} {pool_id}/{pool_version}"


def pool_of(judged: str) -> str:
    """Read from a fingerprint in which pool the runner was."""
    return judged.rpartition("/")[0].rpartition(" ")[2]


def freshness(reported_at: int, now: int, policy: StalenessPolicy) -> Freshness:
    """Judge the age of a report; zero in the policy is no limit."""
    age = now - reported_at
    if 0 < policy.general < age:
        return Freshness.STALE
    return Freshness.AGED if 0 < policy.sensitive < age else Freshness.FRESH


def is_sensitive(job: Applicant) -> bool:
    """Tell whether a job could do harm in the wrong place."""
    return job.wishes.purpose in CRITICAL_PURPOSES or job.requirements.trust in RESTRICTED_TRUST


def is_own_pool(job: Applicant, pool: SchedulingPool) -> bool:
    """Tell whether a pool is reserved for the very scope of a job."""
    return pool.owner_id is not None and pool.owner_id in job.scopes


def is_kept_from(job: Applicant, pool: SchedulingPool) -> bool:
    """Tell whether a pool is reserved for others."""
    return pool.sharing is Sharing.RESERVED and not is_own_pool(job, pool)


def passing(
    job: Applicant, runner: Standing, *, lent: frozenset[str] = NOBODY
) -> Iterator[Hindrance]:
    """List what keeps a runner from a job for now; `lent` are pools whose owners need nothing."""
    pool = runner.pool
    if pool.draining:
        offered = f"in pool {pool.name}, which drains: {pool.reason}"
        yield _hindrance(HindranceCode.POOL_DRAINING, "a pool that takes jobs", offered)
    if pool.closes_in is not None and pool.closes_in < max(1, job.lasts):
        closes = "closes soon" if pool.closes_in else "is closed"
        offered = f"in pool {pool.name}, which {closes} for maintenance: {pool.reason}"
        yield _hindrance(HindranceCode.POOL_MAINTENANCE, "a pool that stays open", offered)
    if pool.spillover and pool.pool_id not in lent and is_kept_from(job, pool):
        offered = f"in pool {pool.name}, which serves {pool.owner} first"
        yield _hindrance(HindranceCode.POOL_KEPT, "a pool that its owner leaves idle", offered)
    limit = (Freshness.AGED, Freshness.STALE) if is_sensitive(job) else (Freshness.STALE,)
    if runner.freshness in limit:
        offered = "described by a report that is too old"
        yield _hindrance(HindranceCode.CAPABILITIES_STALE, "a runner that reported lately", offered)


def lasting(job: Applicant, runner: Standing) -> Iterator[Hindrance]:
    """List what keeps a runner from a job until one of them, the pool or the policy changes."""
    pool, wanted = runner.pool, job.requirements
    if pool.trust not in (None, runner.trust):
        need = f"trust {pool.trust}, like all of pool {pool.name}"
        yield _hindrance(HindranceCode.POOL_TRUST, need, f"trust {runner.trust}")
    if not pool.spillover and is_kept_from(job, pool):
        offered = f"pool {pool.name}, reserved for {pool.owner}"
        yield _hindrance(HindranceCode.POOL_RESERVED, "a pool open to it", offered)
    if wanted.pools and pool.name not in wanted.pools:
        yield Hindrance(
            code=HindranceCode.POOL_NOT_ALLOWED,
            wanted=pools_text(wanted),
            offered=f"pool {pool.name}",
            path="pools",
        )
    region = runner.location.region
    if wanted.regions and region not in wanted.regions:
        unknown = region is None
        yield Hindrance(
            code=HindranceCode.REGION_UNKNOWN if unknown else HindranceCode.REGION_MISMATCH,
            wanted=regions_text(wanted),
            offered="an unknown region" if unknown else f"region {region}",
            path="regions",
        )


def stands_against(job: Applicant, runner: Standing) -> bool:
    """Tell whether anything lasting keeps a runner from a job, and stop at the first such thing."""
    return next(lasting(job, runner), None) is not None


def is_plain(runner: Standing) -> bool:
    """Tell whether a runner's standing keeps nothing from any job that names no place."""
    pool = runner.pool
    return (
        runner.freshness is Freshness.FRESH
        and pool.sharing is Sharing.SHARED
        and pool.trust is None
        and not pool.draining
        and pool.closes_in is None
    )


def pools_text(wanted: Requirements) -> str:
    """Print the pools that a job may run in."""
    return f"pool {' or '.join(wanted.pools)}"


def regions_text(wanted: Requirements) -> str:
    """Print the regions that a job may run in."""
    return f"region {' or '.join(wanted.regions)}"


def _hindrance(code: HindranceCode, wanted: str, offered: str) -> Hindrance:
    return Hindrance(code=code, wanted=wanted, offered=offered)
