"""Heartbeats and renewals of agents that may know more than this store does.

What an agent shows is compared with the store before it is told that something is not its own.
While the store is held its work goes on whatever the store knows of it, and is written down for
whoever has to decide (see `lineage`).
"""

from dataclasses import replace

import sqlalchemy as sa

from forgeyard.model.policy import LeasePolicy
from forgeyard.model.protocol import (
    Heartbeat,
    HeartbeatAnswer,
    Renew,
    RenewalVerdict,
    RenewAnswer,
)
from forgeyard.store import leases, lineage, runners


def heartbeat(
    connection: sa.Connection, session_id: str, message: Heartbeat, *, store_mark: str
) -> HeartbeatAnswer:
    """Keep a session alive; while the store is held, only note for what its agent works.

    Raises:
        InvalidRequest: the report in it cannot be.
        StaleRejected: the session has ended; the agent must register again.
    """
    witness = f"the agent of {session_id}"
    here = lineage.heed(connection, store_mark, witness=witness)
    if here.hold is None:
        answer = runners.heartbeat(connection, session_id, message)
        if answer.abandon:
            here = lineage.heed(connection, store_mark, witness=witness, lease_ids=answer.abandon)
        if here.hold is None:
            return replace(answer, store_mark=here.mark)
    lineage.claim(connection, session_id, message.held)
    return HeartbeatAnswer()


def renew(
    connection: sa.Connection, message: Renew, *, store_mark: str, policy: LeasePolicy
) -> RenewAnswer:
    """Extend leases; while the store is held, let nobody lose one that it does not know."""
    answer = leases.renew(connection, message, policy=policy)
    stale = [one.lease_id for one in answer.leases if one.verdict is RenewalVerdict.STALE]
    if not stale:
        return answer
    witness = f"the agent of {message.session_id}"
    here = lineage.heed(connection, store_mark, witness=witness, lease_ids=stale)
    if here.hold is None:
        return answer
    renewed, ttl = RenewalVerdict.RENEWED, policy.execution_ttl
    return RenewAnswer(
        leases=tuple(
            replace(one, verdict=renewed, ttl=ttl) if one.lease_id in stale else one
            for one in answer.leases
        )
    )
