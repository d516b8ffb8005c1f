"""Records every call that gives, keeps or ends a lease, by standing in for the store's functions.

The product knows nothing of it. A function is exchanged wherever one of our modules holds it, under
whatever name. Only the outermost of nested calls is an entry; what ends within it is its effect.
"""

import dataclasses
import inspect
import itertools
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from forgeyard.errors import Conflict, Rejected, Unavailable
from forgeyard.model.policy import SchedulingPolicy
from forgeyard.model.protocol import RenewAnswer
from forgeyard.model.transitions import LIVE_LEASE_STATES
from forgeyard.scheduler.room import allocatable
from forgeyard.store import (
    commit,
    engine,
    lapse,
    leases,
    policies,
    release,
    renewals,
    runs,
    settle,
    tables,
)
from forgeyard.store.amounts import resources_of
from tests.history.entries import BROKE, DIMENSIONS, RAISED, Ended, Granted

OURS = ("forgeyard", "activities", "worker", "workflows", "benchmarks", "tests", "__main__")
FORESEEN = (Rejected, Conflict, Unavailable, SQLAlchemyError)
Bound = Mapping[str, Any]
"""The arguments of a call by the names of its parameters."""


def _holder(name: str) -> Callable[[Bound], dict[str, Any]]:
    """Tell of a call on a lease who claims to hold it."""

    def told(bound: Bound) -> dict[str, Any]:
        holder = bound[name]
        more = {
            key: str(getattr(holder, key)) for key in ("outcome", "phase") if hasattr(holder, key)
        }
        return {
            "lease": bound["lease_id"],
            "session": holder.session_id,
            "epoch": holder.epoch,
            **more,
        }

    return told


def _renewals(bound: Bound) -> dict[str, Any]:
    message = bound["message"]
    asked = [(one.lease_id, one.epoch) for one in message.leases]
    return {"session": message.session_id, "leases": asked}


def _verdicts(_bound: Bound, answer: RenewAnswer) -> list[str]:
    return [str(one.verdict) for one in answer.leases]


def _batch(bound: Bound) -> dict[str, Any]:
    messages = bound["messages"]
    return {"leases": [(one.lease_id, one.epoch) for some in messages for one in some.leases]}


def _answers(bound: Bound, answers: Sequence[RenewAnswer | None]) -> list[str]:
    """Tell a batch's verdicts one by one; of what it left alone it said nothing."""
    told: list[str] = []
    for message, answer in zip(bound["messages"], answers, strict=True):
        silence = ["unanswered"] * len(message.leases)
        told += silence if answer is None else [str(one.verdict) for one in answer.leases]
    return told


def _id(name: str, key: str) -> Callable[[Bound], dict[str, Any]]:
    return lambda bound: {key: bound[name]}


def _kind(_bound: Bound, answer: object) -> str:
    return type(answer).__name__.lower()


def _plain(_bound: Bound, answer: object) -> Any:
    return dataclasses.asdict(answer) if dataclasses.is_dataclass(answer) else answer


def _outcome(_bound: Bound, answer: commit.CommitOutcome) -> dict[str, Any]:
    return {
        "granted": answer.granted,
        "verdicts": [[job, str(verdict)] for job, verdict in answer.verdicts],
        "repeated": answer.repeated,
    }


@dataclasses.dataclass(frozen=True)
class Operation:
    """A function of the store, and how a call of it is told."""

    home: Any
    name: str
    args: Callable[[Bound], dict[str, Any]]
    result: Callable[[Bound, Any], Any]


OPERATIONS = (
    Operation(commit, "commit_cycle", _id("cycle_id", "cycle"), _outcome),
    Operation(leases, "accept", _holder("holder"), _kind),
    Operation(leases, "reject", _holder("message"), _kind),
    Operation(leases, "progress", _holder("message"), _kind),
    Operation(leases, "complete", _holder("message"), _plain),
    Operation(leases, "renew", _renewals, _verdicts),
    Operation(renewals, "renew_together", _batch, _answers),
    Operation(lapse, "expire", _id("lease_id", "lease"), _plain),
    Operation(lapse, "time_out", _id("attempt_id", "attempt"), _plain),
    Operation(lapse, "overtake", _id("attempt_id", "attempt"), lambda _, held: held.lease["state"]),
    Operation(lapse, "revoke", lambda bound: {"lease": bound["held"].lease["lease_id"]}, _kind),
    Operation(settle, "settle", _id("attempt_id", "attempt"), _plain),
    Operation(
        runs,
        "submit",
        lambda bound: {"key": bound["submission"].idempotency_key},
        _plain,
    ),
)


@dataclasses.dataclass
class _Call:
    name: str
    granted: list[Granted] = dataclasses.field(default_factory=list)
    ended: list[Ended] = dataclasses.field(default_factory=list)


class _Here(threading.local):
    """What this thread is about."""

    call: _Call | None = None
    transaction: list[_Call] | None = None


class Recorder:
    """Writes the history of one process."""

    def __init__(self, folder: Path, actor: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._actor = f"{actor}-{os.getpid()}"
        path = folder / f"{self._actor}-{time.monotonic_ns()}.jsonl"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._numbers = itertools.count(1)
        self._here = _Here()

    def close(self) -> None:
        """Write nothing more."""
        os.close(self._file)

    def line(self, name: str, **told: Any) -> None:
        """Append a line at once, so that no death of this process can lose it."""
        text = json.dumps({"name": name, **told}, separators=(",", ":"))
        os.write(self._file, f"{text}\n".encode())

    @contextmanager
    def call(self, op: str, args: Mapping[str, Any]) -> Iterator[_Call]:
        """Record a call, whose effects are added while it goes on."""
        call = _Call(name=f"{self._actor}/{next(self._numbers)}")
        self.line(call.name, op=op, args=args, invoked=time.monotonic_ns())
        if self._here.transaction is not None:
            self._here.transaction.append(call)
        self._here.call = call
        try:
            yield call
        finally:
            self._here.call = None

    def did(self, call: _Call, result: object) -> None:
        """Tell what a call did, before anybody can commit it."""
        effects = {
            name: [dataclasses.asdict(one) for one in some]
            for name, some in (("granted", call.granted), ("ended", call.ended))
        }
        self.line(call.name, applied=time.monotonic_ns(), result=result, **effects)

    def wrapped(self, operation: Operation) -> Callable[..., Any]:
        """Make a function that does what the store's does, and records it."""
        real = getattr(operation.home, operation.name)
        names = list(inspect.signature(real).parameters)

        def recorded(connection: sa.Connection, *arguments: Any, **named: Any) -> Any:
            if self._here.call is not None:
                return real(connection, *arguments, **named)
            bound = {**dict(zip(names[1:], arguments, strict=False)), **named}
            with self.call(operation.name, operation.args(bound)) as call:
                try:
                    answer = real(connection, *arguments, **named)
                except BaseException as error:
                    self.did(call, _raised(error))
                    raise
                if isinstance(answer, commit.CommitOutcome):
                    call.granted += _granted(connection, answer, named["built_in"])
                self.did(call, operation.result(bound, answer))
                return answer

        return recorded

    def release(self, real: Callable[..., Any]) -> Callable[..., Any]:
        """Make the one function that ends leases tell which."""

        def recorded(connection: sa.Connection, lease: Any, **named: Any) -> Any:
            ended = Ended(lease=lease["lease_id"], to=str(named["to"]))
            if lease["state"] not in LIVE_LEASE_STATES:
                return real(connection, lease, **named)
            if self._here.call is not None:
                answer = real(connection, lease, **named)
                self._here.call.ended.append(ended)
                return answer
            with self.call("release", dataclasses.asdict(ended)) as call:
                answer = real(connection, lease, **named)
                call.ended.append(ended)
                self.did(call, "done")
                return answer

        return recorded

    def write(self, real: Callable[..., Any]) -> Callable[..., AbstractContextManager[Any]]:
        """Make transactions tell how they ended."""

        @contextmanager
        def recorded(*arguments: Any, **named: Any) -> Iterator[sa.Connection]:
            calls: list[_Call] = []
            before, self._here.transaction = self._here.transaction, calls
            happened: bool | None = False
            try:
                with real(*arguments, **named) as connection:
                    yield connection
                    happened = None  # until the commit is acknowledged
                happened = True
            finally:
                self._here.transaction = before
                for call in calls:
                    self.line(call.name, returned=time.monotonic_ns(), happened=happened)

        return recorded


def _raised(error: BaseException) -> str:
    of_ours = isinstance(error, Exception) and not isinstance(error, FORESEEN)
    of_ours = of_ours or isinstance(error, IntegrityError)
    return f"{BROKE if of_ours else RAISED}{type(error).__name__}"


def _granted(
    connection: sa.Connection, outcome: commit.CommitOutcome, built_in: SchedulingPolicy
) -> list[Granted]:
    """Read what was granted from the tables, so that what is judged is what others will see."""
    if not outcome.placed:
        return []
    given, jobs, runners = tables.leases, tables.jobs, tables.runners
    rows = connection.execute(
        sa.select(given, *(jobs.c[name] for name in DIMENSIONS), *_sizes())
        .join(jobs, jobs.c.job_id == given.c.job_id)
        .join(runners, runners.c.runner_id == given.c.runner_id)
        .where(given.c.attempt_id.in_([one.attempt_id for one in outcome.placed]))
        .order_by(given.c.lease_id)
    ).mappings()
    percent = policies.current(connection, built_in).policy.overcommit.cpu_percent
    return [
        Granted(
            lease=row["lease_id"],
            attempt=row["attempt_id"],
            job=row["job_id"],
            runner=row["runner_id"],
            session=row["session_id"],
            epoch=row["epoch"],
            amounts=tuple(row[name] for name in DIMENSIONS),
            capacity=_capacity(row, percent),
        )
        for row in rows
    ]


def _sizes() -> list[Any]:
    return [
        tables.runners.c[f"{part}_{name}"] for part in ("total", "headroom") for name in DIMENSIONS
    ]


def _capacity(row: Any, percent: int) -> tuple[int, ...]:
    room = allocatable(
        resources_of(row, "total_"), resources_of(row, "headroom_"), cpu_percent=percent
    )
    return (room.cpu, room.memory, room.disk, room.slots)


def exchange(pairs: Mapping[Any, Any]) -> None:
    """Put functions in the place of others in every module of ours that holds them."""
    by_id = {id(old): new for old, new in pairs.items()}
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] in OURS:
            for key, value in list(vars(module).items()):
                if id(value) in by_id:
                    setattr(module, key, by_id[id(value)])


def begin(folder: Path, *, actor: str) -> tuple[Recorder, Mapping[Any, Any]]:
    """Record from now on; return what was exchanged for what."""
    recorder = Recorder(folder, actor)
    pairs = {getattr(one.home, one.name): recorder.wrapped(one) for one in OPERATIONS}
    pairs[release.release] = recorder.release(release.release)
    pairs[engine.write] = recorder.write(engine.write)
    exchange(pairs)
    return recorder, pairs


@contextmanager
def recording(folder: Path, *, actor: str = "test") -> Iterator[None]:
    """Record into a folder for the length of a block."""
    recorder, pairs = begin(folder, actor=actor)
    try:
        yield
    finally:
        exchange({new: old for old, new in pairs.items()})
        recorder.close()
