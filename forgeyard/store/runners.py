"""Runners as their agents report them and operators steer them: registered, heard of, drained.

A runner has one open session. A new one ends the one before and takes its leases away in the same
transaction, so a process that lost its network can never work beside its successor.
"""

import random
import re
from datetime import UTC, datetime

import sqlalchemy as sa

from forgeyard.errors import Forbidden, InvalidRequest, NotFound, StaleRejected
from forgeyard.model.enrolment import Admission
from forgeyard.model.ids import RunnerId, SessionId, new_id
from forgeyard.model.policy import LeasePolicy
from forgeyard.model.protocol import (
    PROTOCOL_VERSION,
    Heartbeat,
    HeartbeatAnswer,
    Register,
    Registered,
)
from forgeyard.model.runner import ResourcePressure, RunnerHealth, RunnerState, Suspicion
from forgeyard.model.transitions import SessionState
from forgeyard.model.units import Millis
from forgeyard.store import (
    changes,
    codec,
    entrance,
    generations,
    lineage,
    machines,
    registrations,
    reported,
    reports,
    tables,
    unclean,
    warmups,
)
from forgeyard.store.changes import SESSION, Row
from forgeyard.store.engine import database_now
from forgeyard.store.entrance import BY_TOKEN, Entry
from forgeyard.store.reconcile import books
from forgeyard.store.sessions import end_session, lock_runner, lock_with_leases, revoke_all

POOL = "pol_default"
HEARTBEATS_PER_SILENCE = 6
SUPERSEDED = "a new session of the runner began"
DECLARABLE = (RunnerState.UNHEALTHY, RunnerState.ONLINE)
"""What an operator may say of a runner that its agent cannot know."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_STATES = {
    ResourcePressure.CRITICAL: RunnerState.UNHEALTHY,
    ResourcePressure.MEMORY: RunnerState.SATURATED,
    ResourcePressure.DISK: RunnerState.SATURATED,
    ResourcePressure.THERMAL: RunnerState.SATURATED,
}
_runners, _sessions, _leases = tables.runners, tables.sessions, tables.leases


def register(
    connection: sa.Connection,
    message: Register,
    *,
    policy: LeasePolicy,
    rng: random.Random,
    entry: Entry = BY_TOKEN,
) -> Registered:
    """Open a session for a runner, known by its name; the one before it is fenced at once.

    Not while the store is held: then what the one before it had is left to lapse afterwards.

    Raises:
        InvalidRequest: the name, the protocol's version or the report cannot be.
        Forbidden: the certificate is for no runner of ours, or the name is another runner's.
        StaleRejected: the session that this very registration opened has ended.
    """
    _check(message)
    entered = entrance.judge(connection, message, entry)
    message = entered.message
    known = _id_of_name(connection, message.runner_name)
    if known is not None and entry.runner_id not in (None, known):
        raise Forbidden("this name is another runner's", field="runner_name", value=known)
    is_new = known is None
    runner_id = known or _insert(connection, message, entry.runner_id, rng=rng)
    runner, held = lock_with_leases(connection, runner_id)
    now, here = database_now(connection), lineage.current(connection)
    session_id = registrations.session_of(message, now=now, rng=rng)
    if registrations.is_repeated(connection, runner, session_id):
        return _registered(connection, runner, session_id, policy, here.mark)
    _supersede(connection, runner, now=now)
    if here.hold is None:
        revoke_all(connection, held, reason=SUPERSEDED, now=now, policy=policy)
        # Jobs that were taken away are jobs that it had: it may have served its last by that.
        runner = lock_runner(connection, runner_id)
    _open_session(connection, runner_id, session_id, now=now)
    admitted = entrance.admitted(runner, entered)
    admitted |= machines.bounds_of_runner(connection, message.runner_name)
    state = _wanted({**runner, **admitted}) or RunnerState.ONLINE
    introduced = reports.bounded(runner, _introduced(message, now=now))
    can_do_other = reports.differs(runner, introduced)
    runner = change(
        connection,
        runner,
        state,
        reason="its agent registered",
        now=now,
        session_id=session_id,
        suspect=Suspicion.NONE.value,
        pressure=ResourcePressure.NORMAL.value,
        last_seen_at=now,
        health=RunnerHealth.HEALTHY.value,
        health_reason=None,
        **admitted,
        **introduced,
        **books.recount(connection, runner_id, policy=policy),
    )
    if is_new or can_do_other:
        generations.bump(connection)
    changes.wake_all_waiting(connection, reason=f"runner {message.runner_name} registered")
    return _registered(connection, runner, session_id, policy, here.mark)


def _registered(
    connection: sa.Connection,
    runner: Row,
    session_id: SessionId,
    policy: LeasePolicy,
    store_mark: str,
) -> Registered:
    return Registered(
        runner_id=RunnerId(runner["runner_id"]),
        session_id=session_id,
        renew_every=policy.renew_every,
        heartbeat_every=Millis(policy.session_silence // HEARTBEATS_PER_SILENCE),
        longest_back_off=policy.longest_back_off,
        store_mark=store_mark,
        admission=Admission(runner["admission"]),
        admission_reason=runner["admission_reason"] or "",
        warmup=warmups.is_wanted(connection, runner["name"]),
    )


def _supersede(connection: sa.Connection, runner: Row, *, now: int) -> None:
    """End the session that a runner had, if any."""
    older, state = runner["session_id"], SessionState.SUPERSEDED
    if older is not None:
        end_session(connection, older, state, reason=SUPERSEDED, now=now)


def _check(message: Register) -> None:
    if not _NAME.fullmatch(message.runner_name):
        raise InvalidRequest(
            "a runner needs a plain name",
            field="runner_name",
            value=message.runner_name,
            allowed="1 to 100 letters, digits, dots, dashes and underscores",
        )
    if message.protocol_version != PROTOCOL_VERSION:
        raise InvalidRequest(
            f"the agent speaks version {message.protocol_version} of the protocol",
            field="protocol_version",
            value=message.protocol_version,
            allowed=str(PROTOCOL_VERSION),
        )
    reports.check(message)


def _id_of_name(connection: sa.Connection, name: str) -> str | None:
    known = sa.select(_runners.c.runner_id).where(_runners.c.name == name)
    return connection.execute(known).scalar_one_or_none()


def _insert(
    connection: sa.Connection, message: Register, runner_id: str | None, *, rng: random.Random
) -> str:
    """Make a runner; of two that make the same one at once, one waits for the other."""
    now = database_now(connection)
    born_with = {"jobs_left": None, **machines.born_with(connection, message.runner_name)}
    row = {
        "runner_id": runner_id or _new_id("rnr", now=now, rng=rng),
        "name": message.runner_name,
        "state": RunnerState.OFFLINE.value,
        "pool_id": POOL,
        "pressure": ResourcePressure.NORMAL.value,
        "registered_at": now,
        "last_seen_at": now,
        "changed_at": now,
        **born_with,
        **reports.bounded(born_with, _introduced(message, now=now)),
    }
    changes.upsert(connection, _runners, row, changes={}, keys=("name",))
    return str(_id_of_name(connection, message.runner_name))


def _introduced(message: Register, *, now: int) -> dict[str, object]:
    """Write down what an agent says when it registers, and at no other time its trust."""
    return {
        "trust": message.capabilities.trust.value,
        "location": codec.encode(message.location),
        "pool_wish": message.pool,
        **reports.described(message, now=now),
        **reports.held(message.holdings),
    }


def _open_session(
    connection: sa.Connection, runner_id: str, session_id: SessionId, *, now: int
) -> None:
    session = {
        "session_id": session_id,
        "runner_id": runner_id,
        "state": SessionState.OPEN.value,
        "opened_at": now,
        "last_seen_at": now,
    }
    changes.born(connection, SESSION, [session], reason="its agent registered", now=now)


def _new_id(prefix: str, *, now: int, rng: random.Random) -> str:
    return new_id(prefix, now=datetime.fromtimestamp(now / 1000, UTC), rng=rng)


def heartbeat(connection: sa.Connection, session_id: str, message: Heartbeat) -> HeartbeatAnswer:
    """Keep a session alive, take in how its host does, and name the leases it must let go.

    Raises:
        InvalidRequest: the report in it cannot be.
        StaleRejected: the session has ended; the agent must register again.
    """
    if message.report is not None:
        reports.check(message.report)
    runner = _lock_open(connection, session_id)
    now = database_now(connection)
    message = entrance.heard(connection, runner, message)
    proved = entrance.proved(runner, message)
    if proved:
        generations.bump(connection)
    shut = unclean.shut(connection, runner, message)
    state = state_told({**runner, **proved, **shut}, message)
    able = _able(runner, message, now=now)
    said = {"suspect": _suspicion(runner), "pressure": message.pressure.value, **able}
    said |= reports.held(message.holdings) | proved | shut
    change(
        connection, runner, state, reason="its agent reported", now=now, last_seen_at=now, **said
    )
    connection.execute(_SEEN, {"own_key": session_id, "last_seen_at": now})
    abandon = reported.compare(connection, runner, message.held, now=now)
    can_do_other = reports.differs(runner, able)
    if can_do_other:
        generations.bump(connection)
    _wake(connection, runner, state, can_do_other=can_do_other)
    return HeartbeatAnswer(drain=bool(runner["drain_requested"]), abandon=abandon)


def _suspicion(runner: Row) -> int:
    """Clear what a sign of life clears; conflicts at commit are no matter of that (SP-036)."""
    suspicion: int = runner["suspect"]
    return suspicion if suspicion == Suspicion.CONFLICTS else Suspicion.NONE.value


def _able(runner: Row, message: Heartbeat, *, now: int) -> dict[str, object]:
    """Write down what a heartbeat says about what its host may be given."""
    report = message.report
    return {
        "health": message.health.value,
        "health_reason": message.health_reason or None,
        **({} if report is None else reports.bounded(runner, reports.described(report, now=now))),
    }


def _wake(
    connection: sa.Connection, before: Row, state: RunnerState, *, can_do_other: bool
) -> None:
    """Look for work for a runner that takes some again, or may take other work than before."""
    was_taking_work = before["state"] == RunnerState.ONLINE and not before["suspect"]
    if state is not RunnerState.ONLINE or (was_taking_work and not can_do_other):
        return
    what = "reports anew" if was_taking_work else "takes work again"
    changes.wake_all_waiting(connection, reason=f"runner {before['name']} {what}")


_RUNNER_OF = sa.select(_sessions.c.runner_id).where(_sessions.c.session_id == sa.bindparam("own"))
_SEEN = changes.update_of(_sessions, "session_id", ("last_seen_at",))


def _lock_open(connection: sa.Connection, session_id: str) -> Row:
    """Lock the runner of an open session."""
    runner_id = connection.execute(_RUNNER_OF, {"own": session_id}).scalar_one_or_none()
    if runner_id is not None:
        runner = lock_runner(connection, runner_id)
        if runner["session_id"] == session_id:
            return runner
    raise StaleRejected(
        "the session has ended", field="session_id", value=session_id, allowed="register again"
    )


def state_told(runner: Row, message: Heartbeat) -> RunnerState:
    """Tell the state that a runner has after a heartbeat."""
    wanted = _wanted(runner)
    if wanted is not None:
        return wanted
    if message.draining:
        return RunnerState.DRAINING
    if message.health is RunnerHealth.UNHEALTHY:
        return RunnerState.UNHEALTHY
    return _STATES.get(message.pressure, RunnerState.ONLINE)


def _wanted(runner: Row) -> RunnerState | None:
    """Tell the state that an operator wants, whatever the agent says."""
    if runner["admission"] != Admission.VERIFIED:
        return RunnerState.UNADMITTED
    if runner["drain_requested"]:
        return RunnerState.DRAINING
    return RunnerState.UNHEALTHY if runner["declared_unhealthy"] else None


def close(connection: sa.Connection, session_id: str, *, policy: LeasePolicy) -> None:
    """End a session that its agent gives up; what it still holds is taken away.

    Raises:
        NotFound: there is no such session.
    """
    session = changes.find(connection, SESSION, session_id)
    runner, held = lock_with_leases(connection, session["runner_id"])
    if runner["session_id"] != session_id:
        return
    now = database_now(connection)
    reason = "its agent left"
    end_session(connection, session_id, SessionState.CLOSED, reason=reason, now=now)
    revoke_all(connection, held, reason=reason, now=now, policy=policy)
    change(connection, runner, RunnerState.OFFLINE, reason=reason, now=now, session_id=None)
    changes.wake_all_waiting(connection, reason=f"runner {runner['name']} left")


def drain(
    connection: sa.Connection, name_or_id: str, *, reason: str, actor: str, channel: str
) -> Row:
    """Let a runner finish what it has and take nothing more, until `undrain`.

    Raises:
        NotFound: no runner has this name or id.
    """
    runner = lock_runner(connection, id_of(connection, name_or_id))
    now = database_now(connection)
    wish = {"drain_requested": 1, "drain_reason": reason}
    online = runner["state"] != RunnerState.OFFLINE
    wanted = _wanted({**runner, **wish}) or RunnerState.DRAINING
    state = wanted if online else RunnerState.OFFLINE
    changed = change(connection, runner, state, reason=f"drained: {reason}", now=now, **wish)
    changes.audit(
        connection,
        actor=actor,
        channel=channel,
        action="runner.drain",
        target=runner["runner_id"],
        detail=reason,
        now=now,
    )
    return changed


def undrain(
    connection: sa.Connection, name_or_id: str, *, reason: str, actor: str, channel: str
) -> Row:
    """Let a runner take work again; one whose agent drains by itself says so when next heard of.

    Raises:
        NotFound: no runner has this name or id.
    """
    runner = lock_runner(connection, id_of(connection, name_or_id))
    now = database_now(connection)
    wish = {"drain_requested": 0, "drain_reason": None}
    draining = runner["state"] == RunnerState.DRAINING
    rest = _wanted({**runner, **wish}) or RunnerState.ONLINE
    state = rest if draining else RunnerState(runner["state"])
    changed = change(connection, runner, state, reason=f"undrained: {reason}", now=now, **wish)
    changes.audit(
        connection,
        actor=actor,
        channel=channel,
        action="runner.undrain",
        target=runner["runner_id"],
        detail=reason,
        now=now,
    )
    changes.wake_all_waiting(connection, reason=f"runner {runner['name']} takes work again")
    return changed


def declare(
    connection: sa.Connection,
    name_or_id: str,
    state: RunnerState,
    *,
    reason: str,
    actor: str,
    channel: str,
) -> Row:
    """Take a runner for unhealthy whatever its agent says, until it is declared online again.

    Raises:
        InvalidRequest: it is neither of the two.
        NotFound: no runner has this name or id.
    """
    if state not in DECLARABLE:
        raise InvalidRequest(
            f"nobody can declare a runner {state}",
            field="state",
            value=state,
            allowed=" or ".join(DECLARABLE),
        )
    runner = lock_runner(connection, id_of(connection, name_or_id))
    now = database_now(connection)
    unhealthy = int(state is RunnerState.UNHEALTHY)
    wish = {"declared_unhealthy": unhealthy, "declared_reason": reason if unhealthy else None}
    after = _wanted({**runner, **wish}) or RunnerState.ONLINE
    if runner["session_id"] is None:
        after = RunnerState.OFFLINE
    changed = change(
        connection, runner, after, reason=f"declared {state}: {reason}", now=now, **wish
    )
    changes.audit(
        connection,
        actor=actor,
        channel=channel,
        action="runner.set_state",
        target=runner["runner_id"],
        detail=f"{state}: {reason}",
        now=now,
    )
    changes.wake_all_waiting(connection, reason=f"runner {runner['name']} was declared {state}")
    return changed


def id_of(connection: sa.Connection, name_or_id: str) -> str:
    """Find the id of a runner.

    Raises:
        NotFound: no runner has this name or id.
    """
    named = sa.or_(_runners.c.name == name_or_id, _runners.c.runner_id == name_or_id)
    runner_id = connection.execute(sa.select(_runners.c.runner_id).where(named)).scalar()
    if runner_id is None:
        raise NotFound(f"no runner {name_or_id}", field="runner", value=name_or_id)
    return str(runner_id)


def change(
    connection: sa.Connection,
    runner: Row,
    state: RunnerState,
    *,
    reason: str,
    now: int,
    **values: object,
) -> Row:
    """Update a locked runner; a new state is a new version with a line of history."""
    changed = {"state": state.value, **values}
    if reports.differs(runner, changed):
        changed["changed_at"] = now
    if state != runner["state"]:
        changed["version"] = runner["version"] + 1
        connection.execute(
            sa.insert(tables.history).values(
                kind="runner",
                entity_id=runner["runner_id"],
                before=runner["state"],
                after=state.value,
                version=changed["version"],
                reason=reason,
                at=now,
            )
        )
    statement = changes.update_of(_runners, "runner_id", tuple(changed))
    connection.execute(statement, {"own_key": runner["runner_id"], **changed})
    return {**runner, **changed}
