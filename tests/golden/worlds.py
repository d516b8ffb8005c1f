"""The ten worlds that the explanations of this folder are about, each by the name of its file."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from forgeyard.model.capability import Capabilities, Platform, Requirements
from forgeyard.model.job import Priority
from forgeyard.model.policy import SchedulingPolicy
from forgeyard.model.runner import RunnerState
from forgeyard.model.units import Resources
from forgeyard.model.wishes import Wishes
from forgeyard.scheduler.explain import Background
from forgeyard.scheduler.scopes import Quota, SchedulingScope, Usage
from forgeyard.scheduler.snapshot import Parking, SchedulingJob, Snapshot
from tests.scheduling import MINUTE, NOW, POLICY, a_job, a_runner, a_snapshot, amounts

SINCE = NOW - 5 * MINUTE
ON_LINUX = Requirements(platform=Platform.LINUX)
MAC = Capabilities(platform=Platform.MACOS)
VERSION = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A job to be explained, and everything around it."""

    job: SchedulingJob
    snapshot: Snapshot
    policy: SchedulingPolicy = POLICY
    background: Background = field(default_factory=lambda: Background(policy_version=VERSION))


def _job(name: str = "test", **changed: object) -> SchedulingJob:
    return a_job(name, **{"eligible_at": SINCE, **changed})


def _held(amount: Resources) -> Resources:
    return replace(amount, memory=Resources().memory, disk=Resources().disk)


def best_of_two() -> World:
    job = _job(requirements=ON_LINUX)
    half = a_runner("half", reserved=_held(amounts(cpu=2_000, slots=2)))
    runners = [a_runner("idle"), half, a_runner("mac", capabilities=MAC)]
    waits = tuple(minutes * MINUTE for minutes in (7,) * 11 + (1,) * 5 + (90,) * 4)
    background = Background(policy_version=VERSION, recent_waits=waits)
    return World(job=job, snapshot=a_snapshot([job], runners), background=background)


def tie() -> World:
    return World(job=_job(), snapshot=a_snapshot([_job()], [a_runner("a"), a_runner("b")]))


def never_enough_memory() -> World:
    job = _job("huge", requirements=ON_LINUX, resources=amounts(memory_gib=64))
    large = amounts(cpu=4_000, memory_gib=48, disk_gib=100, slots=4)
    runners = [a_runner(), a_runner("linux-2", total=large), a_runner("mac", capabilities=MAC)]
    parked = Parking(since_at=NOW - 4 * MINUTE, generation=7)
    return World(
        job=job,
        snapshot=a_snapshot([], runners, waiting=20_000, parked=20_000, generation=7),
        background=Background(policy_version=VERSION, parked=parked),
    )


def no_runners() -> World:
    return World(job=_job(), snapshot=a_snapshot([_job()], []))


def everything_is_full() -> World:
    runners = [
        a_runner("a", reserved=_held(amounts(cpu=1_000, slots=4))),
        a_runner("b", reserved=_held(amounts(cpu=3_500, slots=1))),
    ]
    background = Background(policy_version=VERSION, recent_waits=(MINUTE,))
    return World(job=_job(), snapshot=a_snapshot([_job()], runners), background=background)


def draining_and_suspect() -> World:
    runners = [a_runner("a", state=RunnerState.DRAINING), a_runner("b", suspect=True)]
    return World(job=_job(), snapshot=a_snapshot([_job()], runners))


def paused() -> World:
    nightly = SchedulingScope(
        scope_id="que_default", name="nightly", paused=True, note="disk array is rebuilt"
    )
    return World(job=_job(), snapshot=_scoped(_job(), nightly))


def over_quota() -> World:
    acme = SchedulingScope(
        scope_id="tnt_default",
        name="acme",
        kind="tenant",
        quota=Quota(jobs=5),
        used=Usage(jobs=5),
    )
    return World(job=_job(), snapshot=_scoped(_job(), acme))


def _scoped(job: SchedulingJob, scope: SchedulingScope) -> Snapshot:
    return a_snapshot([job], [a_runner()], scopes={scope.scope_id: scope})


def key_held() -> World:
    job = _job("deploy", wishes=Wishes(keys=("production",)))
    keys = {"production": "deploy-blue"}
    return World(job=job, snapshot=a_snapshot([job], [a_runner()], keys=keys))


def behind_a_full_batch() -> World:
    job = _job(priority=Priority.LOW, adjustment=90, refused_by={"rnr_linux-2": "disk full"})
    ahead = [_job("first"), _job("second")]
    away = replace(POLICY, batch=2)
    full = amounts(cpu=4_000, slots=4)
    return World(
        job=job,
        snapshot=a_snapshot([*ahead, job], [a_runner(), a_runner("linux-2", reserved=_held(full))]),
        policy=away,
        background=Background(),
    )


WORLDS: Mapping[str, Callable[[], World]] = {
    make.__name__: make
    for make in (
        *(best_of_two, tie, never_enough_memory, no_runners, everything_is_full),
        *(draining_and_suspect, paused, over_quota, key_held, behind_a_full_batch),
    )
}
