"""Small trees of scopes for the scheduling rules: shares, limits, pauses, and what is used."""

from dataclasses import replace
from random import Random

from forgeyard.model.policy import SchedulingPolicy
from forgeyard.model.units import GIB, Bytes, MilliCpu
from forgeyard.scheduler.gates import Gates
from forgeyard.scheduler.queue import FairQueue
from forgeyard.scheduler.scopes import Quota, SchedulingScope, Usage
from forgeyard.scheduler.snapshot import SchedulingJob, Snapshot

Path = tuple[str, str, str, str]
POOLS = ("pol_default", "pol_other")
KINDS = ("tenant", "organization", "project", "queue")


def open_gates() -> Gates:
    """Make gates that hold nobody back."""
    return Gates({}, {})


def some_tree(rng: Random) -> tuple[dict[str, SchedulingScope], list[Path]]:
    """Make up to three tenants with one or two queues each, some limited, a few paused."""
    scopes = {"scp_root": SchedulingScope(scope_id="scp_root", name="everything", kind="root")}
    paths: list[Path] = []
    for tenant in range(rng.randint(1, 3)):
        for queue in range(rng.randint(1, 2)):
            path = (f"t{tenant}", f"o{tenant}", f"p{tenant}{queue}", f"q{tenant}{queue}")
            paths.append(path)
            for kind, name in zip(KINDS, path, strict=True):
                if name not in scopes:
                    scopes[name] = some_scope(rng, name, kind)
    for name in POOLS:
        pool = replace(some_scope(rng, name, "pool"), paused=rng.random() < 0.05)
        jobs = rng.randint(1, 3) if rng.random() < 0.2 else None
        quota = replace(pool.quota, jobs=jobs)
        scopes[name] = replace(pool, quota=quota, used=Usage(jobs=rng.randint(0, 1)))
    return scopes, paths


def some_scope(rng: Random, name: str, kind: str) -> SchedulingScope:
    """Make a scope that was served before; one in fourteen is limited, few are paused."""
    limited = rng.random() < 0.07
    used = Usage(jobs=rng.randint(0, 2), cpu=MilliCpu(rng.randint(0, 2_000)), memory=Bytes(GIB))
    return SchedulingScope(
        scope_id=name,
        name=name,
        kind=kind,
        weight=rng.choice((1, 1, 2, 5)),
        finish_tag=rng.choice((0, 100_000, 2_000_000, 9_000_000)),
        clock=rng.choice((0, 500_000)),
        paused=rng.random() < 0.005,
        quota=Quota(
            jobs=rng.randint(1, 4) if limited else None,
            cpu=MilliCpu(3_000) if limited and rng.random() < 0.3 else None,
            burst_percent=rng.choice((0, 300, 900)),
        ),
        used=used,
    )


def in_turn(snapshot: Snapshot, policy: SchedulingPolicy) -> list[SchedulingJob]:
    """List all jobs as a cycle serves them that finds room for each."""
    queue = FairQueue(snapshot, policy)
    line: list[SchedulingJob] = []
    for job in queue:
        line.append(job)
        queue.charge(job)
    return line
