"""Renewals of many agents at once, in two statements whatever their number.

A batch waits for nobody: it takes the leases that no other transaction holds, so it can be in no
deadlock, and one lease that is held for long delays no other. What it leaves is for `leases.renew`.
"""

from collections.abc import Sequence
from functools import cache

import sqlalchemy as sa
from sqlalchemy.sql.dml import ReturningUpdate

from forgeyard.model.policy import LeasePolicy
from forgeyard.model.protocol import Renew, RenewalVerdict, RenewAnswer, Renewed
from forgeyard.model.transitions import LeaseState
from forgeyard.store import bulk, tables
from forgeyard.store.engine import now_ms

_Key = tuple[str, str, int]
"""Session, lease and epoch: whoever names all three is the holder."""
_leases = tables.leases


def renew_together(
    connection: sa.Connection, messages: Sequence[Renew], *, policy: LeasePolicy
) -> tuple[RenewAnswer | None, ...]:
    """Extend the active leases of many sessions; answer whoever had all of its own extended.

    A message with no answer named a lease that lapsed, is another's, or is being changed by
    somebody else; nothing is said of it here.
    """
    free = _lock(connection, messages)
    wanted = {key for message in messages for key in _keys(message)} & free.keys()
    extended = _extend(connection, sorted(lease_id for _, lease_id, _ in wanted), policy=policy)
    return tuple(_answer(message, free, extended, policy=policy) for message in messages)


def _keys(message: Renew) -> list[_Key]:
    return [(message.session_id, one.lease_id, one.epoch) for one in message.leases]


def _lock(connection: sa.Connection, messages: Sequence[Renew]) -> dict[_Key, bool]:
    """Lock what is free of the leases named, and tell which of them are to be cancelled."""
    given = {
        "asked": sorted({one.lease_id for message in messages for one in message.leases}),
        "sessions": sorted({message.session_id for message in messages}),
    }
    rows = connection.execute(_free(connection.dialect.name), given)
    return {(session, lease, epoch): bool(cancel) for session, lease, epoch, cancel in rows}


def _extend(
    connection: sa.Connection, lease_ids: Sequence[str], *, policy: LeasePolicy
) -> frozenset[str]:
    """Move the expiry of locked leases that have not lapsed, by the clock of this moment."""
    if not lease_ids:
        return frozenset()
    given = {"locked": lease_ids, "ttl": policy.execution_ttl}
    rows = connection.execute(_extension(connection.dialect.name), given)
    return frozenset(rows.scalars())


def _answer(
    message: Renew, free: dict[_Key, bool], extended: frozenset[str], *, policy: LeasePolicy
) -> RenewAnswer | None:
    keys = _keys(message)
    if not all(key in free and key[1] in extended for key in keys):
        return None
    verdicts = {True: RenewalVerdict.CANCEL, False: RenewalVerdict.RENEWED}
    renewed = (
        Renewed(lease_id=one.lease_id, verdict=verdicts[free[key]], ttl=policy.execution_ttl)
        for one, key in zip(message.leases, keys, strict=True)
    )
    return RenewAnswer(leases=tuple(renewed))


@cache
def _free(dialect: str) -> sa.Select[str, str, int, int]:
    columns = (
        _leases.c.session_id,
        _leases.c.lease_id,
        _leases.c.epoch,
        _leases.c.cancel_requested,
    )
    return (
        sa.select(*columns)
        .where(
            bulk.among_given(dialect, _leases.c.lease_id, "asked"),
            bulk.among_given(dialect, _leases.c.session_id, "sessions"),
            _leases.c.state == LeaseState.ACTIVE.value,
        )
        .with_for_update(skip_locked=True)
    )


@cache
def _extension(dialect: str) -> ReturningUpdate[str]:
    """Read the clock anew: the locks are held by now, and nothing that lapsed comes back."""
    return (
        sa.update(_leases)
        .where(
            bulk.among_given(dialect, _leases.c.lease_id, "locked"),
            _leases.c.expires_at + _leases.c.grace_ms >= now_ms(),
        )
        .values(expires_at=now_ms() + sa.bindparam("ttl", type_=sa.BigInteger()))
        .returning(_leases.c.lease_id)
    )
