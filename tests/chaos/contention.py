"""Schedulers, agents, operators and the sweep on one PostgreSQL, interleaved as Hypothesis draws.

Each step starts several deeds at the same moment, each in a thread with a connection of its own, so
that they meet inside their transactions. After each step everything that must hold is looked at.
"""

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import sqlalchemy as sa
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from forgeyard.errors import Conflict, Rejected, StoreUnavailable
from forgeyard.model.job import FailureClass, JobSpec, RetryPolicy
from forgeyard.model.protocol import CompletionVerdict, Outcome, RenewalVerdict
from forgeyard.model.wishes import Wishes
from forgeyard.scheduler import place
from forgeyard.scheduler.grant import Verdict
from forgeyard.store import runners, shares, snapshot, tables
from forgeyard.store.commit import CommitOutcome, save_plan
from forgeyard.store.engine import read, write
from forgeyard.store.leases import Refused
from tests.builders import PARTITION, RNG, a_job_spec, some_resources
from tests.chaos.invariants import ALWAYS
from tests.leasing import POLICY, Desk, Lease
from tests.sharing import DEFAULT, WISH, cancel, limit

SCHEDULERS = 3
QUOTA = 5
RUNNERS = ("runner-0", "runner-1", "runner-2")
ROOM = some_resources(cpu=1_000, memory=2**40, disk=2**40, slots=2)
AGAIN = RetryPolicy(max_attempts=4, on=(FailureClass.INFRASTRUCTURE, FailureClass.RUNNER_LOST))
OFFER_LAPSES, LEASE_LAPSES = 31_000, 125_000
WHO = {"reason": "a test", "actor": "ann", "channel": "test"}
Deed = tuple[str, int]


def deeds(*names: str) -> st.SearchStrategy[Deed]:
    """Draw a deed, and a number that picks whom it is done to."""
    return st.tuples(st.sampled_from(names), st.integers(0, 11))


DEEDS = deeds(
    # Hypothesis begins with what comes first.
    *("accept",) * 6,
    *("submit",) * 3,
    *("cycle",) * 4,
    *("commit",) * 4,
    *("succeed",) * 5,
    *("fail",) * 3,
    *("renew",) * 3,
    *("reject", "settle", "settle", "sweep", "sweep", "cancel", "heartbeat"),
    *("drain", "undrain", "undrain", "register", "register", "pause", "resume", "resume"),
)


BROKEN = sa.union_all(
    *(sa.select(sa.literal(said), *rule().subquery().c) for said, rule in ALWAYS.items())
)
"""Everything that must hold always, as one query for what breaks it."""


@dataclass(slots=True)
class Seen:
    """What happened over all runs, so that no check can hold for want of anything to check."""

    counts: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, *what: str) -> None:
        with self.lock:
            self.counts.update(what)


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """How things stood at one moment, read in as few words as possible: most of a step is that."""

    leases: Mapping[str, Sequence[Lease]]
    """By their state, oldest first."""
    draining: frozenset[str]
    sessions: Mapping[str, str]
    """Their states."""
    is_paused: bool

    @classmethod
    def of(cls, engine: sa.Engine) -> "Picture":
        """Look at what a step may change and what must hold through it."""
        runners, sessions = tables.runners, tables.sessions
        draining = sa.select(runners.c.runner_id).where(runners.c.drain_requested == 1)
        stand = sa.select(sessions.c.session_id, sessions.c.state)
        paused = sa.select(tables.scopes.c.paused).where(tables.scopes.c.level == 3)
        found: dict[str, list[Lease]] = defaultdict(list)
        with read(engine) as connection:
            for row in connection.execute(_ALL_LEASES).mappings():
                names = {name: row[name] for name in Lease.__dataclass_fields__}
                found[row["state"]].append(Lease(**names))
            return cls(
                leases=found,
                draining=frozenset(connection.execute(draining).scalars()),
                sessions={one.session_id: one.state for one in connection.execute(stand)},
                is_paused=bool(connection.execute(paused).scalar_one()),
            )

    def among(self, *states: str) -> list[Lease]:
        """List the leases that are in these states."""
        return [lease for state in states for lease in self.leases.get(state, ())]


_ALL_LEASES = (
    sa.select(tables.leases, tables.jobs.c.run_id)
    .join(tables.jobs, tables.jobs.c.job_id == tables.leases.c.job_id)
    .order_by(tables.leases.c.epoch, tables.leases.c.lease_id)
)


class Crowd(RuleBasedStateMachine):
    """One world of three runners, a quota and a key, with everybody in it at once."""

    engine: sa.Engine
    """Of an empty database; set by whoever runs this."""
    empty: Callable[[], None]
    seen: Seen

    @initialize()
    def begin(self) -> None:
        type(self).empty()
        self.desk = Desk(self.engine)
        self.threads = ThreadPoolExecutor(8)
        self.plans: list[int] = []
        self.runs: list[str] = []
        self.broken: list[str] = []
        for name in RUNNERS:
            self.desk.register(name, total=ROOM)
        limit(self.desk, DEFAULT, max_jobs=QUOTA)
        self._submit(3)
        self._submit(3)

    def teardown(self) -> None:
        if hasattr(self, "threads"):
            self.threads.shutdown()

    def _submit(self, count: int) -> None:
        jobs = [self._job(number, 1_000 if number == 2 else 500) for number in range(count)]
        self.runs.append(self.desk.submit(*jobs))

    def _job(self, number: int, cpu: int) -> JobSpec:
        keys = ("k",) if number else ()
        return a_job_spec(
            f"job-{number}",
            resources=some_resources(cpu=cpu),
            wishes=Wishes(keys=keys),
            retry=AGAIN,
        )

    @rule(drawn=st.lists(DEEDS, min_size=2, max_size=4), parts=st.sampled_from((SCHEDULERS, 1)))
    def race(self, drawn: list[Deed], parts: int) -> None:
        """Let schedulers plan on one picture, each its share of the jobs, or all of them all."""
        before = Picture.of(self.engine)
        *plans, kept = self._plans(SCHEDULERS + 1, parts)
        calls = [lambda n=n: self._try("race", lambda: self._commit(n)) for n in plans]
        self._at_once([*calls, *self._deeds(drawn, before)])
        self.seen.note("races")
        self._look(before, {name for name, _ in drawn})
        self.plans.append(kept)

    @rule(drawn=st.lists(DEEDS, min_size=2, max_size=5))
    def together(self, drawn: list[Deed]) -> None:
        """Let several things happen at the same moment, with old pictures about."""
        before = Picture.of(self.engine)
        self._at_once(self._deeds(drawn, before))
        self._look(before, {name for name, _ in drawn})

    @rule(drawn=st.lists(DEEDS, min_size=2, max_size=5))
    def together_again(self, drawn: list[Deed]) -> None:
        """Do so more often than anything else."""
        self.together(drawn)

    @rule(
        milliseconds=st.sampled_from((OFFER_LAPSES, LEASE_LAPSES)),
        silent=st.integers(0, 4),
        drawn=st.lists(DEEDS, min_size=1, max_size=2),
    )
    def later(self, milliseconds: int, silent: int, drawn: list[Deed]) -> None:
        """Let time pass, so that what is not renewed at once has lapsed, and sweep."""
        self.desk.later(milliseconds)
        for number, row in enumerate(self.desk.rows(tables.sessions, state="open")):
            if number != silent:
                self._try("heartbeat", partial(self.desk.heartbeat, row["session_id"]))
        self.together([("sweep", 0), *drawn])

    def _plans(self, count: int, parts: int) -> list[int]:
        """Store what so many schedulers plan that saw the same, on the whole of it or on parts.

        With parts they race for runners and shares; without, for the very same jobs.
        """
        with read(self.engine) as connection:
            seen = snapshot.load(connection, PARTITION, POLICY)
        views = [replace(seen, jobs=seen.jobs[part::parts]) for part in range(parts)]
        made = [(place.plan(view, POLICY), view.digest(), POLICY.digest()) for view in views]
        with write(self.engine) as connection:
            return [
                save_plan(connection, PARTITION, *made[number % parts], rng=RNG).cycle_id
                for number in range(count)
            ]

    @invariant()
    def all_holds(self) -> None:
        if hasattr(self, "desk"):
            with self.engine.connect() as connection:
                assert connection.execute(BROKEN).all() == []
            assert self.broken == [], self.broken

    # Deeds

    def _deeds(self, drawn: Sequence[Deed], seen: Picture) -> list[Callable[[], object]]:
        offered, active = seen.among("offered"), seen.among("active")
        ended = seen.among("released", "expired", "revoked", "rejected")
        among = {"accept": offered, "reject": offered, "settle": ended}
        return [self._deed(one, among.get(one[0], active), ended) for one in drawn]

    def _deed(
        self, drawn: Deed, live: Sequence[Lease], ended: Sequence[Lease]
    ) -> Callable[[], object]:
        name, pick = drawn
        desk, runner = self.desk, RUNNERS[pick % len(RUNNERS)]
        simple: dict[str, Callable[[], object]] = {
            "cycle": lambda: self._commit(desk.plan()),
            "sweep": self._sweep,
            "submit": lambda: self._submit(1 + pick % 3),
            "drain": lambda: desk.change(runners.drain, runner, **WHO),
            "undrain": lambda: desk.change(runners.undrain, runner, **WHO),
            "register": lambda: desk.register(runner, total=ROOM),
            "pause": lambda: desk.change(shares.pause, DEFAULT, note="", intent=WISH),
            "resume": lambda: desk.change(shares.resume, DEFAULT, intent=WISH),
        }
        if name in simple:
            return lambda: self._try(name, simple[name])
        if name == "commit" and self.plans:
            cycle_id = self.plans.pop(pick % len(self.plans))
            return lambda: self._try(name, lambda: self._commit(cycle_id))
        if name == "cancel" and self.runs:
            run_id = self.runs[pick % len(self.runs)]
            return lambda: self._try(name, lambda: cancel(desk, run_id))
        # Now and then an agent comes with a lease that was given to another one since.
        among = ended if ended and pick % 4 == 3 else live
        if not among:  # and so that there may be next time, another cycle runs
            return lambda: self._try("cycle", simple["cycle"])
        lease = among[pick % len(among)]
        return lambda: self._try(name, lambda: self._of_lease(name, lease))

    def _of_lease(self, name: str, lease: Lease) -> None:
        desk = self.desk
        if name == "accept":
            answer = desk.accept(lease)
            self.seen.note("refused" if isinstance(answer, Refused) else "accepted")
        elif name in ("succeed", "fail"):
            self._complete(name, lease)
        elif name == "renew":
            self.seen.note(f"renewal {desk.renew(lease)}")
        elif name == "reject":
            desk.reject(lease)
        elif name == "settle":
            desk.settle(lease)
        elif name == "heartbeat":
            desk.heartbeat(lease.session_id)

    def _complete(self, name: str, lease: Lease) -> None:
        if name == "succeed":
            verdict = self.desk.complete(lease)
        else:
            blame = FailureClass.INFRASTRUCTURE
            verdict = self.desk.complete(lease, Outcome.FAILED, failure_class=blame)
        self.seen.note(f"completion {verdict}")

    def _commit(self, cycle_id: int) -> int:
        outcome: CommitOutcome = self.desk.commit(cycle_id)
        self.seen.note("commits", *(verdict for _, verdict in outcome.verdicts))
        return outcome.granted

    def _sweep(self) -> None:
        found = self.desk.sweep()
        self.seen.note(*("expired" for _ in range(found.expired)))
        if "failed" in found.alert or "wrong" in found.alert:
            self.broken.append(found.alert)

    # Watching

    def _at_once(self, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        """Start every call at the same moment, each in its own thread."""
        start = threading.Barrier(len(calls))

        def run(call: Callable[[], Any]) -> Any:
            start.wait(30)
            return call()

        return list(self.threads.map(run, calls))

    def _try(self, name: str, deed: Callable[[], object]) -> None:
        """Do something that may lose against others, but never in a deadlock or half."""
        try:
            deed()
        except (Conflict, Rejected):
            self.seen.note(f"{name} came too late")
        except StoreUnavailable as error:
            self.seen.note("busy")
            if "deadlock" in error.message:
                self.broken.append(f"{name}: {error.message}")
        else:
            self.seen.note(name)

    def _look(self, before: Picture, deeds_done: set[str]) -> None:
        """See that no grant of this step went against what held before it and was not lifted."""
        now = Picture.of(self.engine)
        live = now.among("offered", "active")
        known = {lease.lease_id for leases in before.leases.values() for lease in leases}
        fresh = [lease for lease in live if lease.lease_id not in known]
        if len(live) > QUOTA:
            self.broken.append(f"{len(live)} jobs under a quota of {QUOTA}")
        if "undrain" not in deeds_done and any(one.runner_id in before.draining for one in fresh):
            self.broken.append("a draining runner was given work")
        if before.is_paused and "resume" not in deeds_done and fresh:
            self.broken.append("a paused queue was served")
        if "sweep" not in deeds_done and any(now.sessions[x.session_id] != "open" for x in fresh):
            self.broken.append("a session that has ended was given work")
        if any(now.sessions[lease.session_id] == "superseded" for lease in live):
            self.broken.append("a session kept work though its runner began another")


class Restless(Crowd):
    """The same, with fleets that begin new sessions while schedulers race."""

    @rule()
    def begin_anew(self) -> None:
        """Let every runner register in the midst of a race."""
        self.race([("register", number) for number in range(len(RUNNERS))], SCHEDULERS)


VACUOUS = {
    "races": 100,
    "commits": 500,
    Verdict.GRANTED.value: 300,
    Verdict.JOB_GONE.value: 40,
    "accepted": 100,
    f"completion {CompletionVerdict.ACCEPTED}": 100,
    f"completion {CompletionVerdict.STALE_REJECTED}": 30,
    f"renewal {RenewalVerdict.RENEWED}": 20,
    f"renewal {RenewalVerdict.STALE}": 20,
    "expired": 100,
}
"""How often each must happen in fifty long runs for their silence to mean anything."""
