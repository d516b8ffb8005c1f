"""A model of granting: jobs, runners, schedulers and agents, small enough to visit every state.

What decides is the product's: `grant`, the fence, the tables of transitions, the retry policy. The
model adds what SQL and the network do: rows, locks, and every order of events. An agent here sends
any call about any lease that it was ever offered, at any time, any number of times and under any
epoch of the job; so a lost, late or doubled message, a crash and a frozen process are all among it.
States that differ only in who is called first, among jobs or runners or schedulers, are one; so the
number of a job or a runner may change from one step of a trace to the next.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from forgeyard.errors import IllegalTransition
from forgeyard.model.protocol import Complete, Holder, Outcome
from forgeyard.model.transitions import (
    FINAL_ATTEMPT_STATES,
    FINAL_JOB_STATES,
    JOB_TRANSITIONS,
    AttemptState,
    JobState,
    LeaseState,
    check,
)
from forgeyard.scheduler import grant, retry
from forgeyard.scheduler.gates import Gates
from forgeyard.store import commit, fence, grants, leases, settle
from forgeyard.store.amounts import resources_of
from forgeyard.store.phases import PHASES
from forgeyard.store.release import Held
from tests.models.rows import (
    MOST_GRANTS,
    NOW,
    ONE,
    POLICY,
    RETRY,
    RUNNERS,
    SESSION,
    Job,
    Lease,
    Row,
    Wrong,
    job_to,
    lost,
    mirrored,
    moved,
    older,
    runner_row,
    with_lease,
)

Plan = tuple[int, ...]
"""The jobs that a scheduler found waiting a while ago; empty if it plans nothing."""


class State(NamedTuple):
    """Everything; jobs are numbers that `Granting` gave them, for they come up again and again."""

    jobs: tuple[int, ...]
    plans: tuple[Plan, ...] = ((), ())
    seen: frozenset[tuple[int, int]] = frozenset()
    """Leases, by job and number, that a sweep once found to have lapsed."""
    skew: int = 0
    wrong: str = ""


@dataclass(frozen=True)
class Rules:
    """The decisions; a mutant has another for one of them."""

    staleness: Callable[..., str | None]
    has_lapsed: Callable[[Row, int], bool]
    job_standing: Callable[[Row], grant.JobStanding]
    runner_standing: Callable[..., grant.RunnerStanding]
    next_epoch: Callable[[grants.Grant], int]
    is_undecided: Callable[[Row, Row], bool]
    ends_on_success: bool = True
    looks_again: bool = True
    """Else the sweep trusts what it read before."""
    longest_skew: int = 0
    """By how much the clock that judges expiry may be wrong."""


def product() -> Rules:
    """Take every decision from the product as it is at this moment."""
    return Rules(
        staleness=fence.staleness,
        has_lapsed=fence.has_lapsed,
        job_standing=commit._job_standing,
        runner_standing=commit._runner_standing,
        next_epoch=lambda one: one.epoch,
        is_undecided=settle._is_undecided,
    )


def is_done(job: Job) -> bool:
    """Tell whether a job has ended, or was granted as often as the model follows."""
    spent = job.state == JobState.ELIGIBLE and len(job.leases) >= MOST_GRANTS
    return spent or job.state in FINAL_JOB_STATES


def broken(jobs: Sequence[Job]) -> str:
    """Name the rule of TESTPLAN that jobs break, if any."""
    live = [[lease for lease in job.leases if lease.is_live] for job in jobs]
    held = [lease.runner for some in live for lease in some]
    if any(held.count(runner) > 1 for runner in RUNNERS):
        return "I1: a runner holds more than it has"
    if any(len(some) > 1 for some in live):
        return "I2: a job has two live leases"
    if any(job.wins > 1 for job in jobs):
        return "I3: a job has two accepted results"
    if any(lease.reserves != lease.is_live for job in jobs for lease in job.leases):
        return "I5: a lease and its reservation disagree"
    epochs = [[lease.epoch for lease in job.leases] for job in jobs]
    if any(some != sorted(set(some)) for some in epochs):
        return "the epochs of a job do not grow"
    return ""


class Granting:
    """Every step that can follow a state, under one set of rules."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._known: list[Job] = []
        self._numbers: dict[Job, int] = {}
        self._steps = cache(self._steps_of_job)
        self._commits = cache(self._committed)
        self._crashes = cache(self._crashed)
        self._older = cache(lambda job: self._number(older(self._known[job])))
        self._mirror = cache(lambda job: self._number(mirrored(self._known[job])))
        self._least = cache(self._least_of)
        self._broken = cache(lambda jobs: broken([self._known[job] for job in jobs]))

    def start(self, jobs: int) -> State:
        """Let this many jobs wait."""
        return State(jobs=(self._number(Job()),) * jobs)

    def wrong(self, state: State) -> str:
        """Say what is wrong with a state, if anything."""
        return state.wrong or self._broken(state.jobs)

    def is_end(self, state: State) -> bool:
        """Tell whether nothing is left to do."""
        return all(is_done(self._known[job]) for job in state.jobs)

    def after(self, state: State) -> Iterator[tuple[str, State]]:
        """Let each thing that may happen next happen."""
        return ((what, self._least(following)) for what, following in self._after(state))

    def _number(self, job: Job) -> int:
        number = self._numbers.setdefault(job, len(self._known))
        if number == len(self._known):
            self._known.append(job)
        return number

    def _least_of(self, state: State) -> State:
        """Choose one of all states that differ only in the order of jobs, runners, schedulers."""
        mirrored = state._replace(jobs=tuple(self._mirror(job) for job in state.jobs))
        return min(_in_order(state), _in_order(mirrored))

    def _after(self, state: State) -> Iterator[tuple[str, State]]:
        yield from self._schedulers(state)
        for place, job in enumerate(state.jobs):
            seen = frozenset(n for other, n in state.seen if other == place)
            for what, after in self._steps(job, seen, state.skew):
                yield f"job {place}: {what}", _put(state, place, after)
        yield "time passes", state._replace(jobs=tuple(self._older(job) for job in state.jobs))
        for runner in RUNNERS:
            what = f"agent {runner} crashes and registers"
            yield what, state._replace(jobs=tuple(self._crashes(job, runner) for job in state.jobs))
        if state.skew < self._rules.longest_skew:
            yield "a worker's clock steps", state._replace(skew=self._rules.longest_skew)
        if not self._rules.looks_again:
            yield "the sweep reads", state._replace(seen=frozenset(self._lapsed(state)))

    def _schedulers(self, state: State) -> Iterator[tuple[str, State]]:
        jobs = [self._known[job] for job in state.jobs]
        waiting = tuple(
            place
            for place, job in enumerate(jobs)
            if job.state == JobState.ELIGIBLE and len(job.leases) < MOST_GRANTS
        )
        for number, plan in enumerate(state.plans):
            if plan:
                forgets = _planned(state, number, ())
                yield f"scheduler {number} crashes", forgets
                for first in RUNNERS:
                    jobs_, wrong = self._commits(state.jobs, plan, first)
                    what = f"scheduler {number} commits jobs {plan}, runner {first} first"
                    yield what, forgets._replace(jobs=jobs_, wrong=wrong)
            elif waiting:
                yield f"scheduler {number} plans", _planned(state, number, waiting)

    def _committed(
        self, numbers: tuple[int, ...], plan: Plan, first: int
    ) -> tuple[tuple[int, ...], str]:
        """Commit a plan on the rows as they are now, in one transaction."""
        jobs = [self._known[job] for job in numbers]
        candidates = ((str(first), 0), (str(1 - first), 0))
        requests = [
            grant.GrantRequest(
                job_id=str(place), resources=resources_of(ONE), candidates=candidates
            )
            for place in plan
        ]
        standings = {str(i): self._rules.job_standing(job.row()) for i, job in enumerate(jobs)}
        rooms = {
            str(runner): self._rules.runner_standing(runner_row(jobs, runner), cpu_percent=100)
            for runner in RUNNERS
        }
        try:
            for answer in grant.grant(requests, standings, rooms, gates=Gates({}, {})):
                if answer.runner_id is not None:
                    place = int(answer.job_id)
                    jobs[place] = self._granted(jobs[place], int(answer.runner_id))
        except (IllegalTransition, Wrong) as error:
            return numbers, str(error)
        return tuple(self._number(job) for job in jobs), ""

    def _granted(self, job: Job, runner: int) -> Job:
        check(JOB_TRANSITIONS, JobState(job.state), JobState.LEASED)
        given = grants.Grant(
            job={**job.row(), "job_id": ""},
            runner={"runner_id": runner, "session_id": SESSION},
            attempt_id="",
            lease_id="",
            score=0,
            scopes=(),
        )
        row = grants._lease(given, NOW, POLICY)
        lease = Lease(
            runner=runner,
            epoch=self._rules.next_epoch(given),
            state=row["state"],
            attempt=AttemptState.LEASED.value,
            expires_at=row["expires_at"],
            settled=False,
            reserves=True,
        )
        leases_ = (*job.leases, lease)
        return job._replace(state=JobState.LEASED.value, epoch=lease.epoch, leases=leases_)

    def _crashed(self, number: int, runner: int) -> int:
        """Let an agent crash and register anew: what its old session held is revoked at once."""
        job = self._known[number]
        for n, lease in enumerate(job.leases):
            if lease.is_live and lease.runner == runner:
                job = lost(job, n, LeaseState.REVOKED)
        return self._number(job)

    def _lapsed(self, state: State) -> Iterator[tuple[int, int]]:
        for place, job in enumerate(state.jobs):
            for number, lease in enumerate(self._known[job].leases):
                if self._rules.has_lapsed(lease.row(), NOW):
                    yield place, number

    def _steps_of_job(
        self, number: int, seen: frozenset[int], skew: int
    ) -> list[tuple[str, int | str]]:
        """List what may happen to one job by itself; a text instead of a job says what is wrong."""
        found: list[tuple[str, int | str]] = []
        job = self._known[number]
        for what, step in self._possible(job, seen, skew):
            try:
                after = step()
            except (IllegalTransition, Wrong, ValueError) as error:
                found.append((what, str(error)))
                continue
            if after is not None and after != job:
                found.append((what, self._number(after)))
        return found

    def _possible(
        self, job: Job, seen: frozenset[int], skew: int
    ) -> Iterator[tuple[str, Callable[[], Job | None]]]:
        for n in range(len(job.leases)):
            for epoch in range(1, job.epoch + 1):
                said = f"lease {n}, epoch {epoch}:"
                who = Holder(session_id=SESSION, epoch=epoch)
                yield f"{said} accept", lambda n=n, who=who: self._accept(job, n, who)
                yield f"{said} reject", lambda n=n, who=who: self._reject(job, n, who)
                yield f"{said} renew", lambda n=n, who=who: self._renew(job, n, who)
                for outcome in (Outcome.SUCCEEDED, Outcome.FAILED):
                    report = Complete(session_id=who.session_id, epoch=epoch, outcome=outcome)
                    yield (
                        f"{said} {outcome}",
                        lambda n=n, report=report: self._complete(job, n, report),
                    )
            yield f"lease {n} expires", lambda n=n: self._expire(job, n, n in seen, skew)
            yield f"attempt {n} is settled", lambda n=n: self._settled(job, n)

    def _accept(self, job: Job, n: int, who: Holder) -> Job | None:
        lease = job.leases[n]
        live = (LeaseState.OFFERED, LeaseState.ACTIVE)
        if self._rules.staleness(lease.row(), who, NOW, *live):
            return None
        _demand_holder(job, n, who)
        if lease.state == LeaseState.ACTIVE:
            return with_lease(job, n, expires_at=NOW + POLICY.execution_ttl)
        job = moved(job, n, lease=LeaseState.ACTIVE, attempt=AttemptState.PREPARING)
        job = with_lease(job, n, expires_at=NOW + POLICY.execution_ttl)
        return job_to(job, JobState.PREPARING)

    def _renew(self, job: Job, n: int, who: Holder) -> Job | None:
        """Extend what the statement of `renew` would find and its fence lets through."""
        lease = job.leases[n]
        found = lease.state == LeaseState.ACTIVE and lease.epoch == who.epoch
        if not found or self._rules.has_lapsed(lease.row(), NOW):
            return None
        _demand_holder(job, n, who)
        return with_lease(job, n, expires_at=NOW + POLICY.execution_ttl)

    def _reject(self, job: Job, n: int, who: Holder) -> Job | None:
        if self._rules.staleness(job.leases[n].row(), who, NOW, LeaseState.OFFERED):
            return None
        _demand_holder(job, n, who)
        job = moved(job, n, lease=LeaseState.REJECTED, attempt=AttemptState.REJECTED)
        return job_to(with_lease(job, n, settled=True), JobState.ELIGIBLE)

    def _complete(self, job: Job, n: int, report: Complete) -> Job | None:
        lease = job.leases[n]
        held = Held(run={}, job={}, attempt={"state": lease.attempt}, lease=lease.row())
        if leases._is_repeated(held, report):
            return None
        if self._rules.staleness(lease.row(), report, NOW, LeaseState.ACTIVE):
            return None
        _demand_holder(job, n, report)
        if report.outcome is not Outcome.SUCCEEDED:
            return moved(job, n, lease=LeaseState.RELEASED, attempt=AttemptState.FAILED)
        for phase in PHASES[PHASES.index(AttemptState(lease.attempt)) + 1 :]:
            job = job_to(moved(job, n, attempt=phase), JobState(phase.value))
        job = moved(job, n, lease=LeaseState.RELEASED, attempt=AttemptState.SUCCEEDED)
        job = job._replace(wins=job.wins + 1)
        if not self._rules.ends_on_success:
            return job_to(job_to(job, JobState.RETRY_WAITING), JobState.ELIGIBLE)
        return job_to(job, JobState.SUCCEEDED)

    def _expire(self, job: Job, n: int, was_seen: bool, skew: int) -> Job | None:
        lease = job.leases[n]
        if self._rules.looks_again and not self._rules.has_lapsed(lease.row(), NOW + skew):
            return None
        if not self._rules.looks_again and not was_seen:
            return None
        if lease.is_live and not lease.is_over:
            raise Wrong("a lease is taken away before its time")
        return lost(job, n, LeaseState.EXPIRED)

    def _settled(self, job: Job, n: int) -> Job | None:
        """Settle an attempt as the workflow or the sweep would, whoever comes first."""
        lease = job.leases[n]
        if lease.settled or lease.attempt not in FINAL_ATTEMPT_STATES:
            return None
        attempt = {
            "state": lease.attempt,
            "number": n + 1,
            "accepted_at": NOW,
            "failure_class": None,
        }
        marked = with_lease(job, n, settled=True)
        if not self._rules.is_undecided(attempt, job.row()):
            return marked
        blame, charged = settle.blame_of(attempt)
        marked = marked._replace(charged=job.charged + charged)
        verdict = retry.decide(RETRY, blame, marked.charged, cancelled=False)
        if isinstance(verdict, retry.Retry):
            return job_to(job_to(marked, JobState.RETRY_WAITING), JobState.ELIGIBLE)
        return job_to(marked, settle._ENDS[AttemptState(lease.attempt)])


def _demand_holder(job: Job, n: int, who: Holder) -> None:
    lease = job.leases[n]
    if n != len(job.leases) - 1 or who.epoch != job.epoch:
        raise Wrong("a call of an earlier grant takes effect")
    if lease.is_over:
        raise Wrong("a call takes effect after its lease lapsed")


def _planned(state: State, number: int, plan: Plan) -> State:
    return state._replace(plans=(*state.plans[:number], plan, *state.plans[number + 1 :]))


def _put(state: State, place: int, after: int | str) -> State:
    if isinstance(after, str):
        return state._replace(wrong=after)
    return state._replace(jobs=(*state.jobs[:place], after, *state.jobs[place + 1 :]))


def _in_order(state: State) -> State:
    """Put jobs in the order of their numbers, and plans in that of what they say."""
    jobs, plans, seen = state.jobs, state.plans, state.seen
    order = sorted(range(len(jobs)), key=lambda place: jobs[place])
    if order != list(range(len(jobs))):
        at = {place: new for new, place in enumerate(order)}
        jobs = tuple(jobs[place] for place in order)
        seen = frozenset((at[place], n) for place, n in seen)
        plans = tuple(tuple(sorted(at[place] for place in plan)) for plan in plans)
    return state._replace(jobs=jobs, plans=tuple(sorted(plans)), seen=seen)
