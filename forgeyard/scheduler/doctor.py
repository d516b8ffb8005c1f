"""What is wrong with scheduling, judged from one reading of the store: pure, and changes nothing.

Each check says in one sentence what it found and, unless all is well, what to do. `fail` is for
what does not heal by itself; `warn` for what somebody should look at.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from forgeyard.model.policy import MINUTE, SECOND, SchedulingPolicy
from forgeyard.model.runner import RunnerState
from forgeyard.scheduler.census import Census
from forgeyard.scheduler.columns import Columns
from forgeyard.scheduler.diagnose import Diagnosis
from forgeyard.scheduler.findings import Finding, FindingOutcome, Recorded
from forgeyard.scheduler.place import plan
from forgeyard.scheduler.scopes import ROOT, SchedulingScope, Usage
from forgeyard.scheduler.snapshot import SchedulingJob, SchedulingRunner, Snapshot
from forgeyard.scheduler.stock import Stock

LATE = 10 * SECOND
"""How much later than promised something may come before it counts as not coming."""
UNSWEPT = 30 * SECOND
"""A sweep that ends mass expiries takes its time; after so long none is coming."""
STUCK = MINUTE
"""A job that could run is placed within a cycle; after so long nobody looks."""
NAMED = 3
CONTENDED = 20
"""So many placements have to be refused before their share tells anything."""


class CheckVerdict(StrEnum):
    """How a check came out."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check: what was found, and what to do about it."""

    name: str
    verdict: CheckVerdict
    sentence: str
    advice: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStanding:
    """A pool as an operator set it up."""

    pool_id: str
    name: str
    state: str = "open"


@dataclass(frozen=True, slots=True, kw_only=True)
class Contention:
    """What commits made of plans lately; a refused placement is planned again in the next cycle."""

    planned: int = 0
    refused: int = 0
    mostly: str = ""
    """The verdict on most of the refused."""

    @property
    def ratio(self) -> float:
        """Tell the share of placements that were refused."""
        return self.refused / self.planned if self.planned else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Symptoms:
    """One reading of the store; ages are milliseconds."""

    snapshot: Snapshot
    pools: tuple[PoolStanding, ...] = ()
    strays: tuple[str, ...] = ()
    """For each runner whose pool does not exist, that pool; nobody sees it in a snapshot."""
    misreserved: tuple[Finding, ...] = ()
    """What is wrong with reservations now."""
    found_lately: tuple[Recorded, ...] = ()
    """What reconciliations and heartbeats found in the last hour, the newest first."""
    swept_ms: int | None = None
    """Since a sweep of the partition last came to its end; None if none ever did."""
    reconciled_ms: int | None = None
    """Since a reconciliation did."""
    oldest_offer_ms: int | None = None
    """Of the offers that nobody has accepted yet."""
    offers: int = 0
    overdue_leases: int = 0
    """Leases that a sweep should have ended a good while ago."""
    overdue_deadlines: int = 0
    outbox_lag_ms: int = 0
    undelivered: int = 0
    renewal_beat_ms: int | None = None
    """None if no API process ever served renewals."""
    contention: Contention = Contention()
    last_commit_ms: int | None = None
    """Since a cycle was last committed; None if none was in the last hour."""
    store_hold: str = ""
    """Why nothing is decided at all, if the store may be an older one that was put back."""


def examine(seen: Symptoms, policy: SchedulingPolicy) -> tuple[Check, ...]:
    """Make every check, each whatever the others found."""
    checks: tuple[tuple[str, Callable[[Symptoms, SchedulingPolicy], _Found]], ...] = (
        ("store", _store),
        ("runner_pools", _runner_pools),
        ("capability_classes", _capability_classes),
        ("quotas", _quotas),
        ("stuck_jobs", _stuck_jobs),
        ("contention", _contention),
        ("lease_backlog", _lease_backlog),
        ("resource_accounting", _resource_accounting),
        ("reconciliation", _reconciliation),
        ("upkeep", _upkeep),
        ("outbox", _outbox),
        ("lease_renewal", _lease_renewal),
    )
    return tuple(_check(name, look(seen, policy)) for name, look in checks)


def worst(checks: Iterable[Check]) -> CheckVerdict:
    """Tell how bad the worst of several checks is."""
    order = list(CheckVerdict)
    return max((check.verdict for check in checks), key=order.index, default=CheckVerdict.OK)


_Found = tuple[CheckVerdict, str, str]


def _check(name: str, found: _Found) -> Check:
    verdict, sentence, advice = found
    return Check(name=name, verdict=verdict, sentence=sentence, advice=advice)


def _ok(sentence: str) -> _Found:
    return CheckVerdict.OK, sentence, ""


def _warn(sentence: str, advice: str) -> _Found:
    return CheckVerdict.WARN, sentence, advice


def _fail(sentence: str, advice: str) -> _Found:
    return CheckVerdict.FAIL, sentence, advice


def _store(seen: Symptoms, _policy: SchedulingPolicy) -> _Found:
    """Look whether the store is the newest there was, as far as anybody knows."""
    if seen.store_hold:
        return _fail(
            f"Nothing is placed or ended: {seen.store_hold}.",
            "See `forgeyard store status`; `forgeyard store confirm --reason WHY` goes on.",
        )
    return _ok("Nobody knows of anything that this store has lost.")


def _runner_pools(seen: Symptoms, _policy: SchedulingPolicy) -> _Found:
    """Look whether every pool has somebody who takes work."""
    snapshot = seen.snapshot
    online: Counter[str] = Counter()
    present: Counter[str] = Counter()
    for runner in snapshot.runners:
        present[runner.pool_id] += 1
        online[runner.pool_id] += runner.state is RunnerState.ONLINE and not runner.suspect
    total = sum(online.values())
    waits = f"{_count(snapshot.waiting, 'job')} waiting"
    if not total:
        said = f"None of the {_count(len(snapshot.runners), 'runner')} takes work; {waits}."
        advice = "Start an agent with `forgeyard agent`, or see `forgeyard runner list`."
        return _fail(said, advice) if snapshot.waiting else _warn(said, advice)
    if seen.strays:
        return _fail(
            f"In pools that do not exist: {_count(len(seen.strays), 'runner')}"
            f" ({_named(sorted(set(seen.strays)))}).",
            "Register these runners again, or create the pool.",
        )
    idle = [pool for pool in seen.pools if present[pool.pool_id] and not online[pool.pool_id]]
    if idle:
        return _warn(
            f"Nobody takes work in {_named(f'pool {pool.name} ({pool.state})' for pool in idle)}.",
            "See `forgeyard runner list` for what keeps these runners.",
        )
    return _ok(f"Taking work: {total} of {_count(len(snapshot.runners), 'runner')}.")


def _capability_classes(seen: Symptoms, _policy: SchedulingPolicy) -> _Found:
    """Look for sorts of waiting jobs that no registered runner can ever run."""
    snapshot = seen.snapshot
    classes: dict[str, list[SchedulingJob]] = {}
    for job in snapshot.jobs:
        classes.setdefault(job.requirement_class, []).append(job)
    columns = Columns(snapshot.runners)
    census = Census(columns, Stock(columns))
    hopeless: list[tuple[int, Diagnosis, str]] = []
    for members in classes.values():
        why = census.diagnose(members[0])
        if why.permanent:
            hopeless.append((len(members), why, members[0].name))
    if not hopeless:
        return _ok(f"Every sort of job that waits has its runners ({len(classes)} looked at).")
    jobs, why, name = max(hopeless, key=lambda one: (one[0], one[2]))
    others = len(hopeless) - 1
    more = f" Without anybody as well: {_count(others, 'other sort')} of jobs." if others else ""
    return _warn(
        f"Waiting in vain: {_count(jobs, 'job')} like {name}. {why.sentence}{more}",
        "Add a runner that has it, or change what the jobs require.",
    )


def _quotas(seen: Symptoms, _policy: SchedulingPolicy) -> _Found:
    """Look for limits that one waiting job alone exceeds, and for what is paused."""
    scopes = seen.snapshot.scopes
    blocked: dict[tuple[str, str], SchedulingJob] = {}
    for job in seen.snapshot.jobs:
        for scope in _limiting(scopes, job):
            over = scope.quota.excess(Usage(), job.resources, burst=scope.quota.burst_percent)
            if over is not None:
                blocked.setdefault((f"{scope.kind} {scope.name}", over), job)
    if blocked:
        (where, what), job = min(blocked.items(), key=lambda item: item[0])
        return _fail(
            f"The {what} quota of {where} is less than job {job.name} alone asks for"
            f" ({_count(len(blocked), 'limit')} of this sort).",
            "Raise the limit, or cancel the jobs that can never pass it.",
        )
    paused = [scope for scope in scopes.values() if scope.paused]
    if paused:
        names = _named(sorted(f"{scope.kind} {scope.name}" for scope in paused))
        return _warn(f"Nothing is placed from {names}: paused.", "Resume it when it is time.")
    return _ok("Every waiting job fits into the quotas above it.")


def _limiting(
    scopes: Mapping[str, SchedulingScope], job: SchedulingJob
) -> Sequence[SchedulingScope]:
    return [scopes[name] for name in (ROOT, *job.scopes) if name in scopes]


def _stuck_jobs(seen: Symptoms, policy: SchedulingPolicy) -> _Found:
    """Look for jobs that a cycle would place now while none has placed anything for long."""
    snapshot = seen.snapshot
    if snapshot.damaged:
        return _fail(
            f"Unreadable: {_count(len(snapshot.damaged), 'waiting job')}"
            f" ({_named(sorted(snapshot.damaged))}).",
            "The next cycle ends them; if they stay, no cycle runs.",
        )
    since = {job.job_id: job.eligible_at for job in snapshot.jobs}
    placeable = [decision.job_id for decision in plan(snapshot, policy).decisions]
    waits = [snapshot.taken_at - since[job_id] for job_id in placeable]
    stuck = [wait for wait in waits if wait > STUCK]
    idle = seen.last_commit_ms
    if stuck and (idle is None or idle > STUCK):
        ago = "none has placed anything lately" if idle is None else f"the last was {_s(idle)} ago"
        return _fail(
            f"{_count(len(stuck), 'job')} could run now, the first for {_s(max(stuck))}, but no"
            f" cycle places them: {ago}.",
            "See that Temporal answers and that `forgeyard worker` runs.",
        )
    return _ok(
        f"Waiting for want of a scheduling cycle: none of {_count(snapshot.waiting, 'job')}."
    )


def _contention(seen: Symptoms, _policy: SchedulingPolicy) -> _Found:
    """Look whether schedulers plan for what others have by the time they commit."""
    found = seen.contention
    said = f"Refused at commit lately: {found.refused} of {_count(found.planned, 'placement')}"
    if found.refused < CONTENDED or 2 * found.refused < found.planned:
        return _ok(f"{said}.")
    return _warn(
        f"{said}, mostly {found.mostly}.",
        "Conflicts cost only cycles; if they stay, give partitions runners of their own.",
    )


def _lease_backlog(seen: Symptoms, policy: SchedulingPolicy) -> _Found:
    """Look for offers that nobody takes and for deadlines that nobody enforces."""
    overdue = seen.overdue_leases + seen.overdue_deadlines
    if overdue:
        return _fail(
            f"Past their time and not swept: {_count(seen.overdue_leases, 'lease')} and"
            f" {_count(seen.overdue_deadlines, 'deadline')}.",
            "See that `forgeyard worker` runs: its upkeep workflow sweeps.",
        )
    oldest = seen.oldest_offer_ms or 0
    if 2 * oldest > policy.lease.offer_ttl:
        return _warn(
            f"Not accepted yet: {_count(seen.offers, 'offer')}, the oldest for {_s(oldest)} of"
            f" {_s(policy.lease.offer_ttl)}.",
            "See that the agents reach the agent API: `forgeyard runner list` tells who is heard.",
        )
    return _ok(f"Not accepted yet: {_count(seen.offers, 'offer')}; nothing is overdue.")


def _resource_accounting(seen: Symptoms, _policy: SchedulingPolicy) -> _Found:
    """Look for runners whose books do not balance, and for those that gave away too much."""
    if seen.misreserved:
        one, wrong = seen.misreserved[0], len({each.within for each in seen.misreserved})
        return _fail(
            f"Wrong books: {_count(wrong, 'runner')}; {one.kind} of {one.entity} is {one.found} and"
            f" should be {one.expected}.",
            "The sweep repairs them within seconds and records it; report it if they come back.",
        )
    over = [one.name for one in seen.snapshot.runners if min(_left(one)) < 0]
    if over:
        return _warn(
            f"Holding more than they may give away: {_named(over)}.",
            "Their headroom grew or less CPU is lent; they take nothing more until jobs end.",
        )
    return _ok(f"The books balance: {_count(len(seen.snapshot.runners), 'runner')}.")


def _left(runner: SchedulingRunner) -> tuple[int, int, int, int]:
    free = runner.free
    return free.cpu, free.memory, free.disk, free.slots


def _reconciliation(seen: Symptoms, _policy: SchedulingPolicy) -> _Found:
    """Look at what contradicted itself lately, repaired or not."""
    lately = seen.found_lately
    if not lately:
        return _ok("Nothing contradicted anything in the last hour.")
    left = [one for one in lately if one.outcome is not FindingOutcome.REPAIRED]
    one = (left or lately)[0]
    age = _s(max(0, seen.snapshot.taken_at - one.seen_at))
    return _warn(
        f"Found in the last hour: {_count(len(lately), 'contradiction')}, {len(left)} not repaired;"
        f" {age} ago {one.kind} of {one.entity} ({one.outcome}): {one.found}, expected"
        f" {one.expected}.",
        "See `forgeyard scheduler findings`; what was repaired came of a bug or of a hand in the"
        " database.",
    )


def _upkeep(seen: Symptoms, policy: SchedulingPolicy) -> _Found:
    """Look whether anybody enforces deadlines and compares what must agree (SP-066)."""
    advice = "See that Temporal answers and that `forgeyard worker` runs: its upkeep sweeps."
    if seen.swept_ms is None:
        return _warn("No sweep has run yet.", advice)
    if seen.swept_ms > 2 * policy.sweep.period + UNSWEPT:
        return _fail(f"No sweep has come to its end for {_s(seen.swept_ms)}.", advice)
    compared = seen.reconciled_ms
    if compared is not None and compared > 2 * policy.reconcile.period + UNSWEPT:
        return _warn(f"Nothing has been reconciled for {_s(compared)}.", advice)
    ago = "" if compared is None else f"; reconciled {_s(compared)} ago"
    return _ok(f"Swept {_s(seen.swept_ms)} ago{ago}.")


def _outbox(seen: Symptoms, policy: SchedulingPolicy) -> _Found:
    """Look for committed events that Temporal has not been told of."""
    lag, patience = seen.outbox_lag_ms, policy.sweep.outbox_age + LATE
    if lag <= patience:
        return _ok(f"Waiting to be relayed: {_count(seen.undelivered, 'event')}.")
    said = f"Waiting to be relayed: {_count(seen.undelivered, 'event')}, one for {_s(lag)}."
    advice = "See that Temporal answers; agents go on meanwhile, new attempts are not settled."
    return _fail(said, advice) if lag > patience + STUCK else _warn(said, advice)


def _lease_renewal(seen: Symptoms, policy: SchedulingPolicy) -> _Found:
    """Look whether agents could renew their leases."""
    beat = seen.renewal_beat_ms
    if beat is None:
        return _warn("No API process has served renewals yet.", "Start `forgeyard api`.")
    if beat > policy.sweep.renewal_gap:
        return _fail(
            f"No API process has served renewals for {_s(beat)}; no lease expires meanwhile.",
            "See that `forgeyard api` runs and reaches the database.",
        )
    return _ok(f"Renewals were served {_s(beat)} ago.")


def _s(milliseconds: int) -> str:
    return f"{milliseconds // SECOND} s"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _named(names: Iterable[str]) -> str:
    """List the first few."""
    listed = list(names)
    more = f" and {len(listed) - NAMED} more" if len(listed) > NAMED else ""
    return ", ".join(listed[:NAMED]) + more
