"""One scheduling cycle: plan, commit what was planned, send what was committed.

Only ids and counts pass through here; the decisions lie in SQL under the cycle's id.
"""

from datetime import timedelta
from typing import Final

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from activities import contracts

SQL_TIMEOUT: Final = timedelta(seconds=5)
RELAY_TIMEOUT: Final = timedelta(seconds=30)
RELAY_SILENCE: Final = timedelta(seconds=10)
GIVE_UP: Final = timedelta(seconds=60)
SQL_RETRY: Final = RetryPolicy(maximum_interval=timedelta(seconds=5))
RELAY_RETRY: Final = RetryPolicy(maximum_attempts=2)


@workflow.defn(name=contracts.SCHEDULING_CYCLE)
class SchedulingCycle:
    """Place what can be placed, once."""

    @workflow.run
    async def run(self, request: contracts.Partition) -> contracts.CycleSummary:
        """Plan → commit, if anything was planned → relay, if anything was granted."""
        plan = await workflow.execute_activity(
            contracts.plan_cycle,
            request,
            start_to_close_timeout=SQL_TIMEOUT,
            schedule_to_close_timeout=GIVE_UP,
            retry_policy=SQL_RETRY,
            summary="which job should go to which runner?",
        )
        granted = await self._commit(plan, request) if plan.planned else 0
        workflow.set_current_details(
            f"Cycle {plan.cycle_id}: **{granted} of {plan.eligible}** waiting jobs leased, "
            f"{plan.planned} planned, on {plan.runners} runners. {plan.held}"
        )
        if granted:
            await self._relay(request)
        return contracts.CycleSummary(
            cycle_id=plan.cycle_id,
            eligible=plan.eligible,
            planned=plan.planned,
            granted=granted,
            full=plan.full,
            parked=plan.parked,
            more=plan.more,
            wake_in_ms=plan.wake_in_ms,
            mark=plan.mark,
            held=plan.held,
        )

    async def _commit(self, plan: contracts.CyclePlan, request: contracts.Partition) -> int:
        commit = await workflow.execute_activity(
            contracts.commit_cycle,
            contracts.Cycle(
                cycle_id=plan.cycle_id, partition=request.partition, mark=plan.mark or request.mark
            ),
            start_to_close_timeout=SQL_TIMEOUT,
            schedule_to_close_timeout=GIVE_UP,
            retry_policy=SQL_RETRY,
            summary=f"lease {plan.planned} jobs of cycle {plan.cycle_id}",
        )
        return commit.granted

    async def _relay(self, request: contracts.Partition) -> None:
        """Start the attempts' workflows; what cannot be sent now is upkeep's to send later."""
        try:
            await workflow.execute_activity(
                contracts.relay_outbox,
                request,
                start_to_close_timeout=RELAY_TIMEOUT,
                heartbeat_timeout=RELAY_SILENCE,
                schedule_to_close_timeout=GIVE_UP,
                retry_policy=RELAY_RETRY,
                summary="start the workflows of the new attempts",
            )
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            workflow.logger.warning("the relay failed; upkeep sends the events later: %s", error)
