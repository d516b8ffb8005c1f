"""What agents say most often, renewals and heartbeats, on its way into the store in batches."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import sqlalchemy as sa

from forgeyard import telemetry
from forgeyard.api.batches import Batches, Work
from forgeyard.api.policy_cache import PolicyCache
from forgeyard.api.watch import StoreWatch
from forgeyard.model.protocol import (
    Heartbeat,
    HeartbeatAnswer,
    Renew,
    RenewalVerdict,
    RenewAnswer,
)
from forgeyard.store import leases, lineage, runners
from forgeyard.store.engine import read, write
from forgeyard.store.heartbeats import Beat, hear_together
from forgeyard.store.renewals import renew_together


@dataclass(frozen=True, slots=True, kw_only=True)
class Keepalive:
    """Both kinds of calls; make one per event loop.

    Whoever calls may know more than the store, if that is an older one (see `lineage`). While it is
    held nobody loses a lease that the store does not know, and who works for which is written down.
    """

    renewals: Batches[Renew, RenewAnswer]
    heartbeats: Batches[Beat, HeartbeatAnswer]
    watch: StoreWatch
    engine: sa.Engine
    policies: PolicyCache

    async def renew(self, message: Renew, *, store_mark: str = "") -> RenewAnswer:
        """Keep leases alive, and count what became of each."""
        if not message.leases:
            return RenewAnswer(leases=())
        answer = await self.renewals.ask(message)
        stale = [one.lease_id for one in answer.leases if one.verdict is RenewalVerdict.STALE]
        if stale:
            witness = f"the agent of {message.session_id}"
            here = await self.watch.heed(store_mark, witness=witness, lease_ids=stale)
            if here.hold is not None:
                answer = await asyncio.to_thread(self._spared, answer)
        for one in answer.leases:
            telemetry.RENEWALS.labels(one.verdict).inc()
        return answer

    def _spared(self, answer: RenewAnswer) -> RenewAnswer:
        """Let what is stale by this store go on like the rest."""
        with read(self.engine) as connection:
            ttl = self.policies.read(connection).lease.execution_ttl
        renewed, stale = RenewalVerdict.RENEWED, RenewalVerdict.STALE
        return RenewAnswer(
            leases=tuple(
                replace(one, verdict=renewed, ttl=ttl) if one.verdict is stale else one
                for one in answer.leases
            )
        )

    async def hear(
        self, session_id: str, message: Heartbeat, *, store_mark: str = ""
    ) -> HeartbeatAnswer:
        """Take a heartbeat in, and give its agent the newest mark of the store."""
        witness = f"the agent of {session_id}"
        here = await self.watch.heed(store_mark, witness=witness)
        if here.hold is None:
            answer = await self.heartbeats.ask((session_id, message))
            if answer.abandon:
                lost = answer.abandon
                here = await self.watch.heed(store_mark, witness=witness, lease_ids=lost)
            if here.hold is None:
                return replace(answer, store_mark=here.mark)
        await asyncio.to_thread(self._claim, session_id, message)
        return HeartbeatAnswer()

    def _claim(self, session_id: str, message: Heartbeat) -> None:
        with write(self.engine) as connection:
            lineage.claim(connection, session_id, message.held)


def keepalive(engine: sa.Engine, policies: PolicyCache, *, kick: Callable[[], None]) -> Keepalive:
    """Wire the batches of a process to its store; `kick` relays what a heartbeat woke."""

    def renew_all(messages: Sequence[Renew]) -> Sequence[RenewAnswer | None]:
        with write(engine) as connection:
            policy = policies.read(connection).lease
            return renew_together(connection, messages, policy=policy)

    def renew_one(message: Renew) -> RenewAnswer:
        # Each lease by itself: who holds nothing while it waits is in no deadlock.
        answers = [
            _renew(engine, policies, message, position=n) for n in range(len(message.leases))
        ]
        return RenewAnswer(leases=tuple(one for answer in answers for one in answer.leases))

    def hear_all(beats: Sequence[Beat]) -> Sequence[HeartbeatAnswer | None]:
        with write(engine) as connection:
            return hear_together(connection, beats)

    def hear_one(beat: Beat) -> HeartbeatAnswer:
        with write(engine) as connection:
            answer = runners.heartbeat(connection, *beat)
        kick()
        return answer

    return Keepalive(
        renewals=Batches(
            Work(
                name="renewals",
                together=renew_all,
                alone=renew_one,
                weigh=lambda message: len(message.leases),
            )
        ),
        heartbeats=Batches(Work(name="heartbeats", together=hear_all, alone=hear_one)),
        watch=StoreWatch(engine),
        engine=engine,
        policies=policies,
    )


def _renew(
    engine: sa.Engine, policies: PolicyCache, message: Renew, *, position: int
) -> RenewAnswer:
    one = replace(message, leases=message.leases[position : position + 1])
    with write(engine) as connection:
        return leases.renew(connection, one, policy=policies.read(connection).lease)
