"""The two activities of an attempt: look at it, and settle it once it has ended."""

import asyncio

import sqlalchemy as sa
from temporalio import activity

from activities import contracts
from activities.relay import Waker
from forgeyard import tracing
from forgeyard.model.policy import SchedulingPolicy
from forgeyard.store import changes, leases, lineage, policies, settle
from forgeyard.store.changes import ATTEMPT, Row
from forgeyard.store.engine import write
from forgeyard.store.settle import Settlement


class LeasingActivities:
    """The attempt's activities over one engine; `built_in` holds while no policy was set."""

    def __init__(self, engine: sa.Engine, built_in: SchedulingPolicy, waker: Waker) -> None:
        self._engine = engine
        self._built_in = built_in
        self._waker = waker

    @activity.defn(name="attempt.read", no_thread_cancel_exception=True)
    def read_attempt(self, request: contracts.Attempt) -> contracts.AttemptView:
        """Read an attempt, applying a deadline of its that has passed as the sweep would.

        Raises:
            StoreHeld: whether there is such an attempt, and how it stands, is not certain yet.
        """
        with write(self._engine) as connection:
            lineage.demand_free(connection)
            policy = policies.current(connection, self._built_in).policy
            view = leases.attempt_view(connection, request.attempt_id, policy)
        return contracts.AttemptView(
            state=view.state,
            ended=view.ended,
            settled=view.settled,
            backstop_ms=view.backstop_ms,
        )

    @activity.defn(name="attempt.settle")
    async def settle_attempt(self, request: contracts.Attempt) -> contracts.Settled:
        """Settle an attempt that has ended; settled already, only tell what was decided.

        A job that is to be tried again wakes the scheduler.

        Raises:
            StoreHeld: nothing is decided for now.
        """
        with tracing.span("attempt.settle", attempt_id=request.attempt_id) as span:
            attempt, settlement = await asyncio.to_thread(
                _settle, self._engine, request.attempt_id, self._built_in
            )
            span.of = attempt["run_id"]
            span.note(job_id=attempt["job_id"], decision=settlement.decision)
        partition = attempt["partition"]
        self._waker.ask(partition)
        return contracts.Settled(
            attempt_state=settlement.attempt_state,
            job_state=settlement.job_state,
            decision=settlement.decision,
        )


def _settle(
    engine: sa.Engine, attempt_id: str, built_in: SchedulingPolicy
) -> tuple[Row, Settlement]:
    with write(engine) as connection:
        lineage.demand_free(connection)
        policy = policies.current(connection, built_in).policy
        settlement = settle.settle(connection, attempt_id, policy=policy.lease)
        return changes.find(connection, ATTEMPT, attempt_id), settlement
