"""Enrolments: the right of one machine to become one runner, once.

A token is minted before its machine exists, and is never stored. Who brings it first has it, by one
conditional update; with the same key it gives the same certificate again, for the answer may have
been lost. With another key somebody has copied it: nobody gets anything more, and the runner is
shut out.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa

from forgeyard.errors import (
    Conflict,
    Forbidden,
    NotFound,
    Unauthenticated,
    Unavailable,
)
from forgeyard.model.enrolment import Admission, Awaited, Grant
from forgeyard.store import changes, codec, identities, proven_machines, tables
from forgeyard.store.births import draw_id
from forgeyard.store.changes import Row
from forgeyard.store.engine import database_now
from forgeyard.store.identities import Issued, Sign
from forgeyard.store.proven_machines import MOST_REFUSALS, Prove
from forgeyard.store.shares import Intent
from forgeyard.trust import tokens
from forgeyard.trust.evidence import Unproved

WINDOW_MS: Final = 15 * 60 * 1000
"""How long a token opens the door, once its machine has been seen or an operator has approved."""
LONGEST_WINDOW_MS: Final = 24 * 3600 * 1000
"""How long a token may wait for its machine or its operator, and how long a window may be."""
MOST_LISTED: Final = 500
ENROLLED_ANEW: Final = "its runner was enrolled anew"
COPIED: Final = Intent(
    actor="enrolment", channel="agent-api", reason="its token came with two keys"
)
_enrolments, _runners = tables.enrolments, tables.runners
Marker = Callable[[str, str], str]
"""Gives the mark of the token of an enrolment and a binding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What an enrolment is for; one binding has one enrolment, and so one token."""

    binding: str
    """Such as `host/build-7/1`, or `instance/ID/GENERATION`."""
    runner_name: str
    grant: Grant
    window_ms: int = WINDOW_MS
    needs_approval: bool = False
    opens_when_seen: bool = False
    """Whether the window opens when `seen` says so, instead of now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """A token came with another key than before: somebody has copied it."""

    enrolment_id: str
    runner_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EnrolmentView:
    """An enrolment, for those who look after runners; instants are epoch milliseconds."""

    enrolment_id: str
    binding: str
    runner_name: str
    state: str
    """waiting, open, expired, to_approve, used, cancelled, alarmed or refused."""
    grant: Grant
    created_at: int
    closes_at: int | None
    used_at: int | None
    key: str | None
    """The name of the public key that came with its token."""
    refusals: int
    """How often who came with its token did not prove to be the machine that was meant."""


def mint(
    connection: sa.Connection, wanted: Wanted, intent: Intent, *, mark: Marker, rng: random.Random
) -> EnrolmentView:
    """Make the enrolment of a binding, or find it again unchanged.

    Raises:
        Conflict: it is there, with other grants or for another runner, or it was cancelled.
        NotFound: there is no pool of the name that is granted.
    """
    now = database_now(connection)
    _demand_pool(connection, wanted.grant.pool)
    enrolment_id = draw_id("enr", now=now, rng=rng)
    row = {
        "enrolment_id": enrolment_id,
        "binding": wanted.binding,
        "runner_name": wanted.runner_name,
        "mark": mark(enrolment_id, wanted.binding),
        "grants": codec.encode(wanted.grant),
        "needs_approval": int(wanted.needs_approval),
        "window_ms": wanted.window_ms,
        "created_at": now,
        "opens_at": None if wanted.opens_when_seen or wanted.needs_approval else now,
    }
    changes.upsert(connection, _enrolments, row, changes={}, keys=("binding",))
    found = _of_binding(connection, wanted.binding)
    if found["enrolment_id"] == enrolment_id:
        _tell(connection, "enrolment.mint", found, intent, now=now)
    same = ("runner_name", "needs_approval", "window_ms")
    is_same = codec.decode(Grant, found["grants"]) == wanted.grant
    is_same = is_same and all(found[name] == row[name] for name in same)
    if found["cancelled_at"] is not None or not is_same:
        raise Conflict(
            f"{wanted.binding} has another enrolment already",
            field="binding",
            value=wanted.binding,
            allowed="the same wish again, or the next generation",
        )
    return view(found, now=now)


def seen(connection: sa.Connection, binding: str) -> None:
    """Open the window of an enrolment whose machine was seen for the first time.

    Raises:
        NotFound: there is no such enrolment.
    """
    row, now = _of_binding(connection, binding), database_now(connection)
    if row["opens_at"] is None and not row["needs_approval"]:
        _set(connection, row, opens_at=now)


def id_of(connection: sa.Connection, binding: str) -> str:
    """Find the enrolment of a binding.

    Raises:
        NotFound: there is none.
    """
    return str(_of_binding(connection, binding)["enrolment_id"])


def is_there(connection: sa.Connection, binding: str) -> bool:
    """Tell whether a binding has an enrolment: not every machine needs a token."""
    query = sa.select(_enrolments.c.binding).where(_enrolments.c.binding == binding)
    return connection.execute(query).first() is not None


def withdraw(connection: sa.Connection, binding: str, intent: Intent) -> None:
    """Make the token of a machine worthless, if it has one that nobody has used."""
    query = sa.select(_enrolments.c.enrolment_id).where(
        _enrolments.c.binding == binding,
        _enrolments.c.used_at.is_(None),
        _enrolments.c.cancelled_at.is_(None),
    )
    found = connection.execute(query).scalar_one_or_none()
    if found is not None:
        cancel(connection, found, intent)


def approve(
    connection: sa.Connection, enrolment_id: str, key: str, intent: Intent
) -> EnrolmentView:
    """Let the machine in that came with this key; it fetches its certificate within the window.

    Raises:
        NotFound: there is no such enrolment.
        Conflict: nothing is to be approved, or another key came with the token.
    """
    row, now = _lock(connection, enrolment_id), database_now(connection)
    if row["key"] is None or not row["needs_approval"]:
        raise Conflict("no machine waits for this", field="enrolment", value=enrolment_id)
    if row["key"] != key:
        raise Conflict(
            "another key came with the token",
            field="key",
            value=key,
            allowed=f"{row['key']}, if the machine prints the same",
        )
    if row["approved_at"] is None:
        row = _set(connection, row, approved_at=now, opens_at=now)
        _tell(connection, "enrolment.approve", row, intent, now=now)
    return view(row, now=now)


def cancel(connection: sa.Connection, enrolment_id: str, intent: Intent) -> None:
    """Make a token worthless; a runner that it made already stays: see `runner revoke`.

    Raises:
        NotFound: there is no such enrolment.
    """
    row, now = _lock(connection, enrolment_id), database_now(connection)
    if row["cancelled_at"] is None:
        _set(connection, row, cancelled_at=now)
        _tell(connection, "enrolment.cancel", row, intent, now=now)


def redeem(
    connection: sa.Connection,
    enrolment_id: str,
    mark: str,
    key: str,
    *,
    sign: Sign,
    prove: Prove,
    rng: random.Random,
) -> Issued | Awaited | Alarm | Unproved:
    """Give a token's certificate for a key.

    After an alarm the caller shuts the runner out, in the same transaction. A second proof is asked
    for once: after that, the key is known.

    Raises:
        Unauthenticated: there is no such token.
        Unavailable: the machine that it is for has not been seen yet.
        Forbidden: it is expired, cancelled, or was used before in another way.
    """
    now = database_now(connection)
    row = connection.execute(_FIND, {"own": enrolment_id}).mappings().one_or_none()
    if row is None or not tokens.is_same(row["mark"], mark):
        raise Unauthenticated("nobody made this token", field="token", allowed="a token of ours")
    identities.demand_fresh(connection, key, enrolment_id=enrolment_id)
    if row["used_at"] is None:
        _demand_open(dict(row), now=now)
        refused = _second_proof(connection, dict(row), prove, now=now)
        if refused is not None:
            return refused
        connection.execute(_CLAIM, {"own": enrolment_id, "now": now, "key": key})
    claimed = _lock(connection, enrolment_id)
    if claimed["used_at"] is None or claimed["cancelled_at"] is not None:
        raise _spent("cancelled")
    if claimed["key"] != key:
        return _alarm(connection, claimed, now=now)
    if claimed["alarmed_at"] is not None:
        raise _spent("alarmed")
    if claimed["needs_approval"] and claimed["approved_at"] is None:
        return Awaited(runner_name=claimed["runner_name"], key=key)
    return _issue(connection, claimed, key, sign=sign, now=now, rng=rng)


def _demand_open(row: Row, *, now: int) -> None:
    """Insist that a token which nobody has used opens something now."""
    state = _state(row, now=now)
    if state == "waiting":
        raise Unavailable("the machine of this token has not been seen yet", field="token")
    if state != "open":
        raise _spent(state)


def _second_proof(
    connection: sa.Connection, row: Row, prove: Prove, *, now: int
) -> Unproved | None:
    """Tell why who came with a token is not the machine that was meant, and note that."""
    wanted = codec.decode(Grant, row["grants"]).expects.machine
    if wanted is None:
        return None
    own = row["enrolment_id"]
    refused = proven_machines.recognise(connection, own, wanted, prove, now=now)
    if refused is not None:
        _set(connection, row, refusals=_enrolments.c.refusals + 1)
        intent = Intent(actor="enrolment", channel="agent-api", reason=refused.detail)
        _tell(connection, "enrolment.refuse", row, intent, now=now)
    return refused


def _spent(state: str) -> Forbidden:
    return Forbidden(f"this token is {state}", field="token", allowed="a new one")


def _issue(
    connection: sa.Connection, row: Row, key: str, *, sign: Sign, now: int, rng: random.Random
) -> Issued:
    """Give the first certificate, or the one that was given for this key before."""
    before = identities.of_key(connection, key)
    if before is not None:
        if before["revoked_at"] is not None or before["ends_at"] <= now:
            raise _spent("used")
        return identities.again(before, row["runner_name"])
    if row["runner_id"] is not None:
        raise _spent("used")  # its certificate is over for so long that it is forgotten
    if row["needs_approval"] and now >= _closes(row):
        raise _spent("expired")
    runner_id = _runner_of(connection, row["runner_name"], now=now, rng=rng)
    row = _set(connection, row, runner_id=runner_id)
    generation = identities.newest_generation(connection, runner_id) + 1
    identities.revoke(connection, runner_id, reason=ENROLLED_ANEW, now=now)
    _let_in_again(connection, row)
    return identities.issue(connection, row, key, generation=generation, sign=sign, now=now)


def _runner_of(connection: sa.Connection, name: str, *, now: int, rng: random.Random) -> str:
    """Find the runner of a name, or draw the id that it will have when it registers."""
    known = sa.select(_runners.c.runner_id).where(_runners.c.name == name)
    other = sa.select(_enrolments.c.runner_id).where(
        _enrolments.c.runner_name == name, _enrolments.c.runner_id.is_not(None)
    )
    for query in (known, other):
        found = connection.execute(query.limit(1)).scalar()
        if found is not None:
            return str(found)
    return draw_id("rnr", now=now, rng=rng)


def _let_in_again(connection: sa.Connection, row: Row) -> None:
    """Let a runner that was shut out prove itself anew: an operator made it a new token."""
    connection.execute(
        sa.update(_runners)
        .where(
            _runners.c.runner_id == row["runner_id"],
            _runners.c.admission == Admission.QUARANTINED.value,
        )
        .values(admission=Admission.PENDING.value, admission_reason=None)
    )


def _alarm(connection: sa.Connection, row: Row, *, now: int) -> Alarm:
    """Note that a token came with two keys; from now on it is worth nothing to either."""
    if row["alarmed_at"] is None:
        _set(connection, row, alarmed_at=now)
        _tell(connection, "enrolment.alarm", row, COPIED, now=now)
    return Alarm(enrolment_id=row["enrolment_id"], runner_id=row["runner_id"])


def list_all(connection: sa.Connection) -> tuple[EnrolmentView, ...]:
    """List the newest enrolments, the newest first."""
    now = database_now(connection)
    query = sa.select(_enrolments).order_by(_enrolments.c.enrolment_id.desc()).limit(MOST_LISTED)
    return tuple(view(dict(row), now=now) for row in connection.execute(query).mappings())


def view(row: Row, *, now: int) -> EnrolmentView:
    """Show an enrolment."""
    return EnrolmentView(
        enrolment_id=row["enrolment_id"],
        binding=row["binding"],
        runner_name=row["runner_name"],
        state=_state(row, now=now),
        grant=codec.decode(Grant, row["grants"]),
        created_at=row["created_at"],
        closes_at=None if row["used_at"] else _closes(row),
        used_at=row["used_at"],
        key=row["key"],
        refusals=row["refusals"],
    )


def _state(row: Row, *, now: int) -> str:
    for name, state in (("alarmed_at", "alarmed"), ("cancelled_at", "cancelled")):
        if row[name] is not None:
            return state
    if row["used_at"] is not None:
        waits = row["needs_approval"] and row["approved_at"] is None
        return "to_approve" if waits else "used"
    if row["refusals"] >= MOST_REFUSALS:
        return "refused"
    if now >= _closes(row):
        return "expired"
    return "waiting" if row["opens_at"] is None and not row["needs_approval"] else "open"


def _closes(row: Row) -> int:
    """Tell when a token opens nothing any more."""
    opens = row["opens_at"]
    if opens is None:
        return int(row["created_at"] + LONGEST_WINDOW_MS)
    return int(opens + row["window_ms"])


def _demand_pool(connection: sa.Connection, name: str) -> None:
    pools = tables.pools
    known = sa.select(pools.c.pool_id).where(pools.c.name == name)
    if name and connection.execute(known).first() is None:
        raise NotFound(f"there is no pool {name}", field="grant.pool", value=name)


def _of_binding(connection: sa.Connection, binding: str) -> Row:
    query = sa.select(_enrolments).where(_enrolments.c.binding == binding)
    row = connection.execute(query).mappings().one_or_none()
    if row is None:
        raise NotFound(f"no enrolment for {binding}", field="binding", value=binding)
    return dict(row)


def _lock(connection: sa.Connection, enrolment_id: str) -> Row:
    row = connection.execute(_LOCK, {"own": enrolment_id}).mappings().one_or_none()
    if row is None:
        raise NotFound(f"no enrolment {enrolment_id}", field="enrolment", value=enrolment_id)
    return dict(row)


def _set(connection: sa.Connection, row: Row, **values: object) -> Row:
    own = _enrolments.c.enrolment_id == row["enrolment_id"]
    connection.execute(sa.update(_enrolments).where(own).values(**values))
    return {**row, **values}


def _tell(connection: sa.Connection, action: str, row: Row, intent: Intent, *, now: int) -> None:
    changes.audit(
        connection,
        actor=intent.actor,
        channel=intent.channel,
        action=action,
        target=row["enrolment_id"],
        detail=f"{row['binding']}: {intent.reason}",
        now=now,
    )


_FIND = sa.select(_enrolments).where(_enrolments.c.enrolment_id == sa.bindparam("own"))
_LOCK = _FIND.with_for_update()
_CLAIM = (
    sa.update(_enrolments)
    .where(
        _enrolments.c.enrolment_id == sa.bindparam("own"),
        _enrolments.c.used_at.is_(None),
        _enrolments.c.cancelled_at.is_(None),
    )
    .values(used_at=sa.bindparam("now"), key=sa.bindparam("key"))
)
