"""What must hold after every event: for the rows that it touched, and now and then for all.

The rules about rows are those of `tests.chaos.invariants`. Those added here need to know what the
hosts do meanwhile, or hold at the moment of a grant and not for ever.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import sqlalchemy as sa

from forgeyard.model.protocol import Outcome
from forgeyard.model.transitions import LIVE_LEASE_STATES
from forgeyard.scheduler.findings import FindingKind
from forgeyard.scheduler.scopes import Charge
from forgeyard.store import codec, tables
from forgeyard.store.changes import Row
from forgeyard.store.engine import now_ms, read
from forgeyard.store.reconcile.passes import survey
from tests.chaos import invariants
from tests.simulation import grants
from tests.simulation.world import Process, Violated, World

EVERY = 50
"""After so many events all rows are looked at."""
SURVEYED = "a reconciliation was tried out"
PASSING = frozenset(
    (
        FindingKind.LEASE_UNREPORTED,
        FindingKind.QUEUE_FORGOTTEN,
        FindingKind.ROOM_STRAY,
        FindingKind.RUNNER_CONFLICTED,
        FindingKind.RUNNER_RESTED,
    )
)
"""What is only a matter of time: of nothing else an undamaged store may hold any."""
jobs, leases, attempts = tables.jobs, tables.leases, tables.attempts
history, scopes = tables.history, tables.scopes
_LIVE = [state.value for state in LIVE_LEASE_STATES]
_WORKING = ("leased", "preparing", "running", "uploading_outputs")


def _leased_but_waiting() -> sa.Select:
    """Find jobs that a lease works for although they wait, or are lost."""
    return (
        sa.select(jobs.c.job_id)
        .join(leases, leases.c.job_id == jobs.c.job_id)
        .where(leases.c.state.in_(_LIVE), jobs.c.state.not_in(_WORKING))
    )


def _charged_too_often() -> sa.Select:
    """Find jobs that paid for more attempts than went wrong."""
    wrong = (
        sa.select(sa.func.count())
        .where(
            attempts.c.job_id == jobs.c.job_id,
            attempts.c.accepted_at.is_not(None),
            attempts.c.state.in_(("failed", "timed_out", "lost")),
        )
        .scalar_subquery()
    )
    return sa.select(jobs.c.job_id).where(jobs.c.attempts_charged > wrong)


def _held_by_nobody() -> sa.Select:
    """Find leases that have ended and hold a key or a device still."""
    keys, devices = tables.key_holds, tables.device_holds
    held = sa.union(sa.select(keys.c.lease_id), sa.select(devices.c.lease_id))
    return sa.select(leases.c.lease_id).where(
        leases.c.lease_id.in_(held), leases.c.state.not_in(_LIVE)
    )


def _left_to_the_superseded() -> sa.Select:
    """Find live leases of sessions that another one of the runner, or their agent, has ended."""
    sessions = tables.sessions
    return (
        sa.select(leases.c.lease_id)
        .join(sessions, sessions.c.session_id == leases.c.session_id)
        .where(leases.c.state.in_(_LIVE), sessions.c.state.in_(("superseded", "closed")))
    )


ALWAYS = {
    **invariants.ALWAYS,
    "a job waits and is leased": _leased_but_waiting,
    "a job paid for more attempts than went wrong": _charged_too_often,
    "a live lease belongs to a session that gave way": _left_to_the_superseded,
    "a lease has ended and holds a key or a device": _held_by_nobody,
}


def _touched(rule: Callable[[], sa.Select]) -> sa.Select:
    query = rule()
    (what,) = query.selected_columns
    return query.where(what.in_(sa.bindparam("touched", expanding=True)))


def _one_statement(rules: Mapping[str, sa.Select]) -> sa.CompoundSelect:
    """Ask everything at once, which costs a fraction of asking one thing after the other."""
    parts = ((said, query.subquery()) for said, query in rules.items())
    return sa.union_all(
        *(sa.select(sa.literal(said), next(iter(part.c)).label("id")) for said, part in parts)
    )


_OF_TOUCHED = _one_statement({said: _touched(rule) for said, rule in ALWAYS.items()})
_NEWS = sa.select(history).where(history.c.history_id > sa.bindparam("seen"))
_NEWS = _NEWS.order_by(history.c.history_id)
_LEASES = sa.select(leases).where(leases.c.lease_id.in_(sa.bindparam("named", expanding=True)))
_LAPSED = sa.select(leases.c.lease_id).where(
    leases.c.lease_id.in_(sa.bindparam("named", expanding=True)),
    leases.c.expires_at + leases.c.grace_ms < now_ms(),
)


@dataclass(kw_only=True)
class Ledger:
    """What was seen so far."""

    world: World
    is_held: Callable[[str], bool]
    """Tells whether a host believes, rightly by its clock, that a lease is its own."""
    seen: int = 0
    looks: int = 0
    surveys: int = 0
    writes: int = 0
    leases: dict[str, str] = field(default_factory=dict)
    won: dict[str, str] = field(default_factory=dict)
    """The attempt whose success was acknowledged, by job."""
    served: set[str] = field(default_factory=set)
    """Leases that were accepted."""

    def look(self) -> None:
        """Demand everything that must hold now."""
        self.looks += 1
        self._demand_sole_processes()
        writes, all_rows = self.world.database.turn.taken, self.looks % EVERY == 0
        if writes == self.writes and not all_rows:
            return  # nobody has written anything since
        self.writes = writes
        with read(self.world.engine) as connection:
            news = connection.execute(_NEWS, {"seen": self.seen}).mappings().all()
            if news:
                self.seen = news[-1]["history_id"]
                self._take(connection, news)
            self._demand_lasting_leases(connection)
            if all_rows:
                self._demand(connection, _OF_ALL, {})
                self._demand_fair_sums(connection)
                self._demand_nothing_to_repair(connection)
        self._demand_sole_processes()

    def _take(self, connection: sa.Connection, news: Sequence[Row]) -> None:
        """Look at the rows that have changed."""
        changed = [row["entity_id"] for row in news if row["kind"] == "lease"]
        rows = connection.execute(_LEASES, {"named": changed}).mappings().all() if changed else ()
        touched = {row["entity_id"] for row in news} | {row["run_id"] for row in news}
        touched |= {row[name] for row in rows for name in ("runner_id", "job_id", "attempt_id")}
        self._demand(connection, _OF_TOUCHED, {"touched": sorted(touched - {None})})
        granted = [r["entity_id"] for r in news if r["kind"] == "lease" and r["before"] is None]
        if granted:
            for said in grants.problems(connection, granted, self.world.built_in):
                raise Violated(said)
        for row in news:
            if row["kind"] == "lease":
                self._follow(row)

    def _follow(self, row: Row) -> None:
        """Take note of what has become of a lease."""
        lease_id, before, after = row["entity_id"], row["before"], row["after"]
        self.leases[lease_id] = after
        self.world.tell("lease", f"{lease_id[-6:]} {before or ''} -> {after}: {row['reason']}")
        if after == "active":
            self.served.add(lease_id)
        if after == "expired":
            if before == "active" and self.is_held(lease_id):
                raise Violated(f"lease {lease_id} was given away while its host still had it")
            if self.world.now_ms < self.world.spared_until and lease_id in self.world.spared:
                raise Violated(f"lease {lease_id} expired for an outage of ours")

    def _demand_sole_processes(self) -> None:
        """Demand that every process runs under a live lease, and no job has two."""
        running = self.world.running
        first: dict[str, Process] = {}
        for lease_id, process in running.items():
            other = first.setdefault(process.job_id, process)
            if other is not process:
                where = f"on {other.host} and on {process.host}"
                raise Violated(f"job {process.job_id} runs twice, {where}")
            if self.leases[lease_id] != "active":
                raise Violated(
                    f"a process runs on {process.host} for lease {lease_id},"
                    f" which is {self.leases[lease_id]}"
                )

    def _demand_lasting_leases(self, connection: sa.Connection) -> None:
        """Demand that no process runs whose lease could be given away at any moment."""
        running = list(self.world.running)
        lapsed = connection.execute(_LAPSED, {"named": running}).first() if running else None
        if lapsed is not None:
            raise Violated(f"a process outlived its lease {lapsed.lease_id}")

    def acknowledged(self, attempt_id: str, outcome: Outcome) -> None:
        """Take note that an agent was told that its result counts."""
        with read(self.world.engine) as connection:
            query = sa.select(attempts).where(attempts.c.attempt_id == attempt_id)
            row = connection.execute(query).mappings().one()
        if row["state"] != outcome:
            raise Violated(f"attempt {attempt_id} was told {outcome} and is {row['state']}")
        if outcome is Outcome.SUCCEEDED:
            first = self.won.setdefault(row["job_id"], attempt_id)
            if first != attempt_id:
                raise Violated(f"two results of job {row['job_id']} were accepted")

    def _demand_fair_sums(self, connection: sa.Connection) -> None:
        """Demand that no scope was served more than it was charged for."""
        paid: dict[str, int] = {}
        query = sa.select(leases, *(jobs.c[name] for name in _PATH)).join(
            jobs, jobs.c.job_id == leases.c.job_id
        )
        for row in connection.execute(query).mappings():
            if row["accepted_at"] is not None or row["state"] == "offered":
                prices = codec.decode(tuple[Charge, ...], row["charged"])
                for name, charge in zip(_PATH, prices, strict=True):
                    paid[row[name]] = paid.get(row[name], 0) + charge.price
        tags = sa.select(scopes.c.scope_id, scopes.c.finish_tag)
        for scope_id, finish in connection.execute(tags):
            if finish < paid.get(scope_id, 0):
                raise Violated(f"{scope_id} was charged {finish} for {paid[scope_id]}")

    def _demand_nothing_to_repair(self, connection: sa.Connection) -> None:
        """Demand that a reconciliation would find nothing but what passes by itself."""
        policy = self.world.policy(connection)
        self.surveys += 1
        for one in survey(connection, policy).findings:
            if one.kind not in PASSING:
                what = f"{one.kind} of {one.entity}: {one.found}, not {one.expected}"
                raise Violated(f"a reconciliation would find {what}")

    def demand_recovered(self, since_ms: int, left: Collection[str]) -> None:
        """Demand that leases nobody works for have ended, and what was owed then was done."""
        held = [lease_id for lease_id in left if self.leases[lease_id] in _LIVE]
        if held:
            raise Violated(f"nobody works for {held[0]}, and it lives still")
        outbox = tables.outbox
        unsettled = sa.select(attempts.c.attempt_id).where(
            attempts.c.finished_at < since_ms, attempts.c.settled_at.is_(None)
        )
        undelivered = sa.select(outbox.c.event_id).where(
            outbox.c.created_at < since_ms, outbox.c.delivered_at.is_(None)
        )
        with read(self.world.engine) as connection:
            for said, query in (("settled", unsettled), ("delivered", undelivered)):
                found = connection.execute(query).scalars().first()
                if found is not None:
                    raise Violated(f"{found} was not {said} in time")

    def demand_rest(self) -> None:
        """Demand that nothing is open, owed or held any more."""
        with read(self.world.engine) as connection:
            self._demand(connection, _AT_REST, {})
            self._demand_nothing_to_repair(connection)
        self.world.weather.happened[SURVEYED] += self.surveys

    def _demand(
        self, connection: sa.Connection, rules: sa.CompoundSelect, values: dict[str, object]
    ) -> None:
        broken = connection.execute(rules, values).all()
        if broken:
            raise Violated("; ".join(f"{said}: {found}" for said, found in broken))


def _everything() -> sa.Select:
    return sa.select(tables.reservations.c.lease_id)


def _undelivered() -> sa.Select:
    return sa.select(tables.outbox.c.event_id).where(tables.outbox.c.delivered_at.is_(None))


_PATH = ("tenant_id", "organization_id", "project_id", "queue_id")
_OF_ALL = _one_statement({said: rule() for said, rule in ALWAYS.items()})
_AT_REST = _one_statement(
    {
        **{said: rule() for said, rule in invariants.AT_REST.items()},
        "a reservation is left": _everything(),
        "an event was not delivered": _undelivered(),
    }
)


def is_at_rest(connection: sa.Connection) -> bool:
    """Tell whether everything has come to rest."""
    return connection.execute(_OPEN).first() is None


_OPEN = _AT_REST.limit(1)
"""One thing that has not come to rest, or nothing."""
