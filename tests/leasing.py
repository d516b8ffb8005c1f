"""A desk for tests of leases: registers runners, runs real cycles, plays the agent, moves time."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import sqlalchemy as sa

from forgeyard.model.ids import SessionId
from forgeyard.model.job import JobSpec
from forgeyard.model.policy import SchedulingPolicy
from forgeyard.model.protocol import (
    Complete,
    CompletionVerdict,
    Heartbeat,
    HeartbeatAnswer,
    Holder,
    Outcome,
    Phase,
    Progress,
    Registered,
    Reject,
    Renew,
    Renewal,
    RenewalVerdict,
)
from forgeyard.model.runner import RejectReason
from forgeyard.scheduler import place
from forgeyard.store import leases, runners, snapshot, tables
from forgeyard.store.changes import Row
from forgeyard.store.commit import CommitOutcome, commit_cycle, save_plan
from forgeyard.store.dispatch import assignments
from forgeyard.store.engine import read, write
from forgeyard.store.leases import AttemptView, Refused
from forgeyard.store.settle import Settlement, settle
from forgeyard.store.sweep import SweepResult, sweep
from tests.builders import PARTITION, RNG, a_registration, submit_run

T = TypeVar("T")
POLICY = SchedulingPolicy()
HOUR = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A grant as its agent knows it."""

    lease_id: str
    attempt_id: str
    job_id: str
    run_id: str
    runner_id: str
    session_id: str
    epoch: int

    @property
    def holder(self) -> Holder:
        """Name the rightful holder."""
        return Holder(session_id=SessionId(self.session_id), epoch=self.epoch)


class Desk:
    """One database with the calls that tests make again and again, each in its own transaction."""

    def __init__(self, engine: sa.Engine, policy: SchedulingPolicy = POLICY) -> None:
        self.engine = engine
        self.policy = policy

    def change(self, function: Callable[..., T], *arguments: Any, **named: Any) -> T:
        with write(self.engine) as connection:
            return function(connection, *arguments, **named)

    def submit(self, *jobs: JobSpec, **changed: Any) -> str:
        return self.change(submit_run, *jobs, **changed)

    def register(self, name: str = "runner-1", **changed: Any) -> Registered:
        message = a_registration(name, **changed)
        return self.change(runners.register, message, policy=self.policy.lease, rng=RNG)

    def plan(self, plan: place.Plan | None = None) -> int:
        """Plan on the present snapshot unless a plan is given; return the cycle."""
        with read(self.engine) as connection:
            seen = snapshot.load(connection, PARTITION, self.policy)
        plan = place.plan(seen, self.policy) if plan is None else plan
        digests = (seen.digest(), self.policy.digest())
        return self.change(save_plan, PARTITION, plan, *digests, rng=RNG).cycle_id

    def commit(self, cycle_id: int) -> CommitOutcome:
        return self.change(commit_cycle, cycle_id, built_in=self.policy)

    def cycle(self) -> CommitOutcome:
        return self.commit(self.plan())

    def leases(self, **where: object) -> list[Lease]:
        """Read leases, oldest epoch first."""
        table, jobs = tables.leases, tables.jobs
        query = (
            sa.select(table, jobs.c.run_id)
            .join(jobs, jobs.c.job_id == table.c.job_id)
            .where(*(table.c[name] == value for name, value in where.items()))
            .order_by(table.c.epoch, table.c.lease_id)
        )
        names = Lease.__dataclass_fields__
        with read(self.engine) as connection:
            rows = connection.execute(query).mappings().all()
        return [Lease(**{name: row[name] for name in names}) for row in rows]

    def offered(self, *jobs: JobSpec, runner: str = "runner-1") -> Lease:
        """Register a runner, submit a run and let a cycle offer its one eligible job."""
        self.register(runner)
        run_id = self.submit(*jobs)
        assert self.cycle().granted == 1
        (lease,) = (lease for lease in self.leases(state="offered") if lease.run_id == run_id)
        return lease

    def active(self, *jobs: JobSpec, runner: str = "runner-1") -> Lease:
        """Do the same and accept."""
        lease = self.offered(*jobs, runner=runner)
        assert not isinstance(self.accept(lease), Refused)
        return lease

    def accept(self, lease: Lease, holder: Holder | None = None) -> object:
        holder = holder or lease.holder
        return self.change(leases.accept, lease.lease_id, holder, policy=self.policy.lease)

    def reject(self, lease: Lease, **changed: Any) -> object:
        message = Reject(
            session_id=SessionId(lease.session_id),
            epoch=lease.epoch,
            reason=RejectReason.DISK_INSUFFICIENT,
            detail="2 GiB left",
        )
        message = replace(message, **changed)
        return self.change(leases.reject, lease.lease_id, message, policy=self.policy.lease)

    def renew(self, lease: Lease, **changed: Any) -> RenewalVerdict:
        named = {"session_id": lease.session_id, "epoch": lease.epoch, **changed}
        message = Renew(
            session_id=SessionId(named["session_id"]),
            leases=(Renewal(lease_id=lease.lease_id, epoch=named["epoch"]),),
        )
        (answer,) = self.change(leases.renew, message, policy=self.policy.lease).leases
        return answer.verdict

    def progress(self, lease: Lease, phase: Phase, **changed: Any) -> object:
        message = Progress(session_id=SessionId(lease.session_id), epoch=lease.epoch, phase=phase)
        message = replace(message, **changed)
        return self.change(leases.progress, lease.lease_id, message, policy=self.policy.lease)

    def complete(
        self, lease: Lease, outcome: Outcome = Outcome.SUCCEEDED, **changed: Any
    ) -> CompletionVerdict:
        message = Complete(
            session_id=SessionId(lease.session_id), epoch=lease.epoch, outcome=outcome
        )
        message = replace(message, **changed)
        return self.change(leases.complete, lease.lease_id, message, policy=self.policy.lease)

    def settle(self, lease: Lease) -> Settlement:
        return self.change(settle, lease.attempt_id, policy=self.policy.lease)

    def view(self, lease: Lease) -> AttemptView:
        return self.change(leases.attempt_view, lease.attempt_id, self.policy)

    def heartbeat(self, session_id: str, **changed: Any) -> HeartbeatAnswer:
        return self.change(runners.heartbeat, session_id, Heartbeat(**changed))

    def sweep(self) -> SweepResult:
        return sweep(self.engine, PARTITION, self.policy)

    def assignments(self, *session_ids: str) -> dict[str, Any]:
        with read(self.engine) as connection:
            return assignments(connection, session_ids, policy=self.policy.lease)

    def later(self, milliseconds: int) -> None:
        """Let time pass for everything that has a deadline, by moving all of it back."""
        past = (
            (tables.leases, "expires_at"),
            (tables.deadlines, "due_at"),
            (tables.sessions, "last_seen_at"),
            (tables.refusals, "until_at"),
            (tables.wakes, "signalled_at"),
            (tables.liveness, "beat_at"),
            (tables.runs, "created_at"),
            (tables.runs, "ready_at"),
        )
        with write(self.engine) as connection:
            for table, name in past:
                values = {name: table.c[name] - milliseconds}
                connection.execute(sa.update(table).values(values))

    def overwrite(self, table: sa.Table, key: str, **values: object) -> None:
        """Overwrite columns of one row behind the store's back."""
        (column,) = table.primary_key
        with write(self.engine) as connection:
            connection.execute(sa.update(table).where(column == key).values(values))

    def row(self, table: sa.Table, key: str) -> Row:
        (column,) = table.primary_key
        (found,) = self.rows(table, **{column.name: key})
        return found

    def rows(self, table: sa.Table, **where: object) -> list[Row]:
        query = sa.select(table).where(*(table.c[name] == value for name, value in where.items()))
        query = query.order_by(*table.primary_key)
        with read(self.engine) as connection:
            return [dict(row) for row in connection.execute(query).mappings()]

    def states(self, lease: Lease) -> tuple[str, str, str]:
        """Read the states of lease, attempt and job."""
        return (
            self.row(tables.leases, lease.lease_id)["state"],
            self.row(tables.attempts, lease.attempt_id)["state"],
            self.row(tables.jobs, lease.job_id)["state"],
        )

    def run_state(self, run_id: str) -> str:
        return str(self.row(tables.runs, run_id)["state"])

    def reserved(self, runner_id: str) -> dict[str, int]:
        """Read what a runner holds, after checking that every place that knows agrees."""
        runner = self.row(tables.runners, runner_id)
        live = [
            self.row(tables.jobs, lease.job_id)
            for state in ("offered", "active")
            for lease in self.leases(runner_id=runner_id, state=state)
        ]
        held = self.rows(tables.reservations, runner_id=runner_id)
        sums: dict[str, int] = {}
        for name in ("cpu_milli", "memory_bytes", "disk_bytes", "slots"):
            sums[name] = runner[f"reserved_{name}"]
            assert sums[name] == sum(row[name] for row in held), name
            assert sums[name] == sum(row[name] for row in live), name
        return sums

    def deadlines(self, entity_id: str) -> set[str]:
        return {row["kind"] for row in self.rows(tables.deadlines, entity_id=entity_id)}

    def wakes(self) -> int:
        return sum(row["generation"] for row in self.rows(tables.wakes))

    def audited(self, action: str) -> list[Row]:
        return self.rows(tables.audit, action=action)

    def events(self, attempt_id: str) -> list[str]:
        rows = self.rows(tables.outbox, stream=attempt_id)
        return [row["kind"] for row in sorted(rows, key=lambda row: row["sequence"])]
