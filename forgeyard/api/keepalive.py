"""What agents say most often, renewals and heartbeats, on its way into the store in batches."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import sqlalchemy as sa

from forgeyard import telemetry
from forgeyard.api.batches import Batches, Work
from forgeyard.api.policy_cache import PolicyCache
from forgeyard.model.protocol import Heartbeat, HeartbeatAnswer, Renew, RenewAnswer
from forgeyard.store import leases, runners
from forgeyard.store.engine import write
from forgeyard.store.heartbeats import Beat, hear_together
from forgeyard.store.renewals import renew_together


@dataclass(frozen=True, slots=True, kw_only=True)
class Keepalive:
    """Both kinds of calls; make one per event loop."""

    renewals: Batches[Renew, RenewAnswer]
    heartbeats: Batches[Beat, HeartbeatAnswer]

    async def renew(self, message: Renew) -> RenewAnswer:
        """Keep leases alive, and count what became of each."""
        if not message.leases:
            return RenewAnswer(leases=())
        answer = await self.renewals.ask(message)
        for one in answer.leases:
            telemetry.RENEWALS.labels(one.verdict).inc()
        return answer

    async def hear(self, session_id: str, message: Heartbeat) -> HeartbeatAnswer:
        """Take a heartbeat in."""
        return await self.heartbeats.ask((session_id, message))


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
    )


def _renew(
    engine: sa.Engine, policies: PolicyCache, message: Renew, *, position: int
) -> RenewAnswer:
    one = replace(message, leases=message.leases[position : position + 1])
    with write(engine) as connection:
        return leases.renew(connection, one, policy=policies.read(connection).lease)
